import pytest
import torch
import torch.nn.functional as F

from afield.errors import SpecError
from afield.training.method import risks
from afield.training.methods.irm import IRM
from tests.training.methods.references import loss_of, replay, unequal


def test_it_equals_the_public_code():
    logs = {"loss": "loss", "nll": "risk", "penalty": "penalty"}
    replay("irm", IRM(penalty=20.0, warmup=0.25), logs=logs)


def test_without_a_penalty_it_is_the_mean_of_the_risks(model, task, stream):
    batches = unequal(next(stream))
    loss = loss_of(IRM(penalty=0.0), IRM().setup(model, task), batches)
    torch.testing.assert_close(loss, risks(model, batches).mean())


def test_the_penalty_is_the_product_of_the_derivatives_of_two_halves(model, task, stream):
    batches = unequal(next(stream))
    products = []
    for batch in batches:
        scale = torch.ones((), requires_grad=True)
        halves = [
            torch.autograd.grad(F.cross_entropy(scale * model(b_x), b_y), scale)[0]
            for b_x, b_y in ((batch.x[i::2], batch.y[i::2]) for i in (0, 1))
        ]
        products.append(halves[0] * halves[1])
    method, learner = IRM(penalty=3.0, warmup=0.0), IRM().setup(model, task)
    loss, logs = method.loss(learner, batches)
    expected = torch.stack(products).mean()
    torch.testing.assert_close(logs["penalty"], expected)
    torch.testing.assert_close(loss, risks(model, batches).mean() + 3 * expected)


def test_during_the_warm_up_the_penalty_has_the_weight_one(model, task, stream):
    learner, batches = IRM().setup(model, task), next(stream)
    early, _ = IRM(penalty=50.0, warmup=0.1).loss(learner, batches)
    plain, _ = IRM(penalty=1.0, warmup=0.0).loss(learner, batches)
    torch.testing.assert_close(early, plain)


def test_one_sample_of_a_domain_is_refused():
    IRM().check_batch(2)
    with pytest.raises(SpecError, match=r"irm needs 2 or more sample\(s\) of a domain"):
        IRM().check_batch(1)


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(SpecError, match=r"irm\.penalty=-1: must not be below 0"):
        IRM(penalty=-1.0)
    with pytest.raises(SpecError, match=r"irm\.warmup=2: must be from 0 to 1"):
        IRM(warmup=2.0)
