import torch

from afield.merging.merges.magmax import magmax
from tests.merging.merges.numbers import random


def test_every_entry_is_that_of_an_expert_and_none_is_larger():
    deltas = random(4, 6, 5)
    result = magmax(deltas)
    assert (deltas == result).any(0).all()
    assert torch.equal(result.abs(), deltas.abs().amax(0))


def test_of_two_opposite_changes_the_later_counts():
    delta = random(3)
    assert torch.equal(magmax(torch.stack([delta, -delta])), -delta)
    assert torch.equal(magmax(torch.stack([-delta, delta, delta / 2])), delta)
