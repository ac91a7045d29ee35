"""SAM: the reference numbers, ERM as its limit, and a vanishing gradient."""

import copy

import pytest
import torch

from afield.errors import SpecError
from afield.training.methods.erm import ERM
from afield.training.methods.sam import SAM
from tests.training.methods.reference import theta
from tests.training.methods.references import replay


def test_two_updates_equal_the_reference():
    replay("sam", SAM(rho=0.05))


def test_without_a_radius_it_is_erm_bit_for_bit(model, task, stream):
    methods = SAM(rho=0.0), ERM()
    ours, plain = (method.setup(copy.deepcopy(model), task) for method in methods)
    for _ in range(3):
        batches = next(stream)
        methods[0].update(ours, batches)
        methods[1].update(plain, batches)
    assert torch.equal(theta(ours.model), theta(plain.model))


def test_the_offset_has_the_length_of_the_radius_and_vanishes_with_the_gradient():
    (moved,) = SAM(rho=0.5).offset([torch.tensor([3.0, 4.0])])
    torch.testing.assert_close(moved, torch.tensor([0.3, 0.4]))
    (still,) = SAM(rho=0.5).offset([torch.zeros(2)])
    assert still.tolist() == [0, 0]


def test_a_negative_radius_is_refused():
    with pytest.raises(SpecError, match=r"sam\.rho"):
        SAM(rho=-1.0)
