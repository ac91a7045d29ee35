import torch

from afield.training.method import risks
from afield.training.methods.ib_erm import IBERM
from tests.training.methods.references import loss_of, unequal


def test_the_penalty_is_the_variance_within_each_domain(model, task, stream):
    batches = unequal(next(stream))
    variances = [model.features(b.x).var(dim=0, correction=1).mean() for b in batches]
    loss = loss_of(IBERM(penalty=7.0), IBERM().setup(model, task), batches)
    expected = risks(model, batches).mean() + 7 * torch.stack(variances).mean()
    torch.testing.assert_close(loss, expected)


def test_there_is_no_penalty_during_the_warm_up(model, task, stream):
    batches = next(stream)
    loss, _ = IBERM(penalty=1e5).loss(IBERM().setup(model, task), batches)
    torch.testing.assert_close(loss, risks(model, batches).mean())
