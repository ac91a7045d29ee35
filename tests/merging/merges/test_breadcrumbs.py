import torch

from afield.merging.merges.breadcrumbs import breadcrumbs
from tests.merging.merges.numbers import random


def test_of_one_expert_the_middle_magnitudes_stay():
    delta = random(1, 20, 50)
    order = delta.flatten().abs().sort().indices
    expected = torch.zeros(1000).double()
    middle = order[850:993]
    expected[middle] = delta.flatten()[middle]
    assert torch.equal(breadcrumbs(delta), expected.view(20, 50))


def test_every_expert_has_its_own_bounds():
    deltas = random(2, 400)
    deltas[1] *= 1000
    apart = [breadcrumbs(deltas[i : i + 1]) for i in range(2)]
    torch.testing.assert_close(breadcrumbs(deltas), apart[0] + apart[1])


def test_a_single_number_stays():
    assert torch.equal(breadcrumbs(torch.ones(2, 1)), torch.full((1,), 2.0))


def test_nothing_is_left_where_the_shares_overlap():
    assert not breadcrumbs(random(2, 30), low=0.8, high=0.5).any()
