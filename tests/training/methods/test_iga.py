import torch

from afield.training.methods.iga import IGA


def test_the_penalty_is_a_sum_over_domains(model, task, stream):
    batches, learner = next(stream), IGA().setup(model, task)
    once, twice = (IGA().loss(learner, b)[1]["spread"] for b in (batches, [*batches, *batches]))
    torch.testing.assert_close(twice, 2 * once)
    assert IGA().loss(learner, batches[:1] * 3)[1]["spread"] < 1e-9
