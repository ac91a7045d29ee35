import torch

from afield.merging.merges.pcb import pcb
from afield.merging.order_statistics import Deltas
from tests.merging.merges.numbers import random


def merged(deltas, **settings):
    return pcb(Deltas(len(deltas), deltas.shape[1], lambda: [deltas]), **settings)(deltas)


def test_one_expert_keeps_its_share_of_its_largest_changes():
    delta = random(1, 1000)
    result = merged(delta, ratio=0.1)
    kept = result.nonzero().flatten()
    # At the bound itself the weight is 0; beyond the clip all magnitudes are one.
    assert 80 <= len(kept) <= 100
    assert set(kept.tolist()) <= set(delta[0].abs().sort().indices[-101:].tolist())
    top = delta[0].abs().sort().values[989 - 1 + 1]
    torch.testing.assert_close(result.abs().max(), top)


def test_many_experts_do_not_overflow():
    deltas = random(120, 40, dtype=torch.float32)
    result = merged(deltas)
    assert result.isfinite().all()
    torch.testing.assert_close(result, merged(deltas.double()).float(), rtol=1e-3, atol=1e-4)


def test_equal_entries_have_no_weight_instead_of_nan():
    assert torch.equal(merged(torch.full((2, 50), 0.1)), torch.zeros(50))
