import pytest
import torch

from afield.errors import SpecError
from afield.training.method import risks
from afield.training.methods.ib_erm import IBERM
from tests.training.methods.references import loss_of, replay, unequal


def test_it_equals_the_public_code():
    # What it logs as nll contains the penalty.
    logs = {"loss": "loss", "nll": "loss", "IB_penalty": "variance"}
    replay("ib_erm", IBERM(penalty=1.0, warmup=0.25), logs=logs)


def test_without_a_penalty_it_is_the_mean_of_the_risks(model, task, stream):
    batches = unequal(next(stream))
    loss = loss_of(IBERM(penalty=0.0), IBERM().setup(model, task), batches)
    torch.testing.assert_close(loss, risks(model, batches).mean())


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


def test_one_sample_of_a_domain_is_refused():
    with pytest.raises(SpecError, match="ib_erm needs 2 or more"):
        IBERM().check_batch(1)
