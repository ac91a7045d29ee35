import torch

from afield.training.method import risks
from afield.training.methods.iga import IGA
from tests.training.methods.references import loss_of, replay, unequal


def test_it_equals_the_public_code():
    logs = {"loss": "risk", "penalty": "spread"}
    replay("iga", IGA(penalty=10.0), logs=logs)


def test_without_a_penalty_it_is_the_mean_of_the_risks(model, task, stream):
    batches = unequal(next(stream))
    loss = loss_of(IGA(penalty=0.0), IGA().setup(model, task), batches)
    torch.testing.assert_close(loss, risks(model, batches).mean())


def test_the_penalty_is_a_sum_over_domains(model, task, stream):
    batches, learner = next(stream), IGA().setup(model, task)
    once, twice = (IGA().loss(learner, b)[1]["spread"] for b in (batches, [*batches, *batches]))
    torch.testing.assert_close(twice, 2 * once)
    assert IGA().loss(learner, batches[:1] * 3)[1]["spread"] < 1e-9
