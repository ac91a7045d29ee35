import pytest
import torch
import torch.nn.functional as F

from afield.training.methods.mixup import Mixup
from tests.training.methods.references import loss_of, unequal


def test_neighbors_are_mixed_up_to_the_shorter_batch(model, task, stream):
    batches, method = unequal(next(stream)), Mixup()
    object.__setattr__(method, "order", lambda domains: torch.tensor([2, 0, 1]))
    object.__setattr__(method, "lam", lambda like, pairs: torch.tensor([0.3, 0.9, 0.5]))
    losses = []
    for (i, j), share in zip(((2, 0), (0, 1), (1, 2)), (0.3, 0.9, 0.5), strict=True):
        length = min(len(batches[i].y), len(batches[j].y))
        (a, y), (b, other) = ((batches[k].x[:length], batches[k].y[:length]) for k in (i, j))
        logits = model(share * a + (1 - share) * b)
        mixed = share * F.cross_entropy(logits, y) + (1 - share) * F.cross_entropy(logits, other)
        losses.append(mixed)
    loss = loss_of(method, method.setup(model, task), batches)
    torch.testing.assert_close(loss, torch.stack(losses).mean())


def test_shares_are_drawn_from_the_beta_distribution():
    torch.manual_seed(0)
    for alpha in (0.2, 5.0):
        shares = Mixup(alpha=alpha).lam(torch.zeros(1), 20_000)
        assert shares.mean() == pytest.approx(0.5, abs=0.01)
        assert shares.var() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.05)
