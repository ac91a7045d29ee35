import copy

import pytest
import torch
import torch.nn.functional as F

from afield.data.samples import Batch
from afield.data.stream import Stream
from afield.errors import SpecError
from afield.hyperparameters import build
from afield.training.method import pool
from afield.training.methods.erm import ERM
from afield.training.methods.ohem import OHEM
from tests.training.methods.reference import followed, precise, theta


def ordered(model, batches):
    """The losses of all samples, the largest first."""
    pooled = pool(batches)
    losses = F.cross_entropy(model(pooled.x), pooled.y, reduction="none")
    return sorted(losses.tolist(), reverse=True)


@pytest.mark.parametrize(
    ("share", "kept"), [(1.0, 24), (0.5, 12), (0.1, 2), (0.25, 6), (0.4, 10), (1e-6, 1)]
)
def test_the_loss_is_the_mean_of_the_largest(model, task, stream, share, kept):
    model, batches = model.double(), precise(next(stream))
    loss, logs = OHEM(share=share).loss(OHEM().setup(model, task), batches)
    largest = ordered(model, batches)[:kept]
    assert loss.item() == pytest.approx(sum(largest) / kept, rel=1e-12)
    assert logs["threshold"].item() == largest[-1]


def test_of_a_tiny_share_the_largest_loss_is_left(model, task, stream):
    batches = next(stream)
    loss, _ = OHEM(share=1e-9).loss(OHEM().setup(model, task), batches)
    assert loss.item() == ordered(model, batches)[0]


def test_all_of_the_batch_is_erm_to_the_last_bit(model, task, samples):
    ohem, erm = (m.setup(copy.deepcopy(model), task) for m in (OHEM(share=1.0), ERM()))
    stream = Stream(samples, batch=8, seed=0)
    for _ in range(50):
        batches = next(stream)
        logs = OHEM(share=1.0).update(ohem, batches)
        expected = ERM().update(erm, batches)
        # The loss is a sum in another order; what is learnt from it is the same.
        torch.testing.assert_close(logs["loss"], expected["loss"])
        assert torch.equal(theta(ohem.model), theta(erm.model))


def test_only_what_is_chosen_has_a_gradient(model, task, stream):
    model, batches = model.double(), precise(next(stream))
    pooled = pool(batches)
    losses = F.cross_entropy(model(pooled.x), pooled.y, reduction="none")
    hardest = losses.argsort(descending=True)[:6]
    chosen = Batch(*(part[hardest] for part in pooled))
    result = []
    for method, some in ((OHEM(share=0.25), batches), (ERM(), [chosen])):
        learner = method.setup(copy.deepcopy(model), task)
        method.update(learner, some)
        result.append(followed(learner.model))
    torch.testing.assert_close(*result, rtol=0, atol=1e-12)


def test_the_hardest_of_all_domains_together_are_chosen(model, task, stream):
    first, second, third = next(stream)
    # One domain is so far off that it has all of the hardest.
    batches = [first, second._replace(x=100 * second.x, y=(second.y + 1) % 4), third]
    pooled = pool(batches)
    losses = F.cross_entropy(model(pooled.x), pooled.y, reduction="none")
    assert set(pooled.domain[losses.topk(3).indices].tolist()) == {1}
    loss, _ = OHEM(share=3 / 24).loss(OHEM().setup(model, task), batches)
    alone, _ = OHEM(share=3 / 8).loss(OHEM().setup(model, task), batches[1:2])
    torch.testing.assert_close(loss, alone)


def test_where_all_are_as_hard_it_is_their_loss(model, task, stream):
    one = next(stream)[0]
    same = [Batch(*(part[:1].repeat(8, *[1] * (part.ndim - 1)) for part in one))] * 3
    loss, logs = OHEM(share=0.3).loss(OHEM().setup(model, task), same)
    expected = F.cross_entropy(model(one.x[:1]), one.y[:1])
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(logs["threshold"], expected.detach())


@pytest.mark.parametrize("share", [0.0, -0.5, 1.01, 50])
def test_a_share_that_is_none_is_refused(share):
    with pytest.raises(
        SpecError, match=r"(?i)ohem\.share=.*(above 0 and at most 1|not be below 0)"
    ):
        build(OHEM, {"share": share})
