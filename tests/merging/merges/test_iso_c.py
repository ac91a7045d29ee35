"""Iso-C: the authors' numbers, and an even spectrum."""

import torch

from afield.merging.merges.iso_c import iso_c
from tests.merging.merges.matrices import low_rank, normal


def test_all_directions_weigh_the_mean():
    deltas = normal(3, 20, 12)
    values = torch.linalg.svdvals(deltas.sum(dim=0))
    torch.testing.assert_close(torch.linalg.svdvals(iso_c(deltas)), values.mean().expand_as(values))


def test_an_even_expert_alone_stays_as_it_is():
    even = 3 * torch.linalg.qr(normal(20, 12)).Q
    torch.testing.assert_close(iso_c(even[None]), even)


def test_a_low_rank_is_not_filled_up_and_keeps_its_nuclear_norm():
    deltas = low_rank(2, 96, 64)
    values, result = (torch.linalg.svdvals(x) for x in (deltas.sum(dim=0), iso_c(deltas)))
    assert (result > 1e-9).sum() == 32
    torch.testing.assert_close(result.sum(), values.sum())


def test_experts_that_cancel_give_nothing():
    delta = normal(8, 6)
    assert torch.equal(iso_c(torch.stack([delta, -delta])), torch.zeros(8, 6).double())
