import math

import torch

from afield.merging.merges.slerp import slerp
from tests.merging.merges.numbers import random


def test_its_ends_are_the_experts():
    deltas, base = random(2, 4, 3), random(4, 3, seed=1)
    for t in (0.0, 1.0):
        torch.testing.assert_close(slerp(deltas, base=base, t=t), deltas[int(t)])


def test_between_right_angles_it_goes_along_the_circle():
    base = torch.tensor([0.5, 0.25]).double()
    experts = torch.eye(2).double()
    for t in (0.25, 0.5):
        result = base + slerp(experts - base, base=base, t=t)
        angle = t * math.pi / 2
        torch.testing.assert_close(
            result, torch.tensor([math.cos(angle), math.sin(angle)]).double()
        )


def test_experts_of_one_length_keep_it():
    base, experts = random(30), torch.nn.functional.normalize(random(2, 30, seed=1), dim=1)
    result = base + slerp(experts - base, base=base, t=0.3)
    torch.testing.assert_close(result.norm(), torch.tensor(1.0).double())


def test_one_direction_is_a_straight_line():
    base, first = random(6), random(6, seed=1)
    deltas = torch.stack([first, 3 * first]) - base
    torch.testing.assert_close(slerp(deltas, base=base, t=0.5), 2 * first - base)
    zeros = torch.zeros(2, 6)
    assert torch.equal(slerp(zeros, base=zeros[0]), zeros[0])


def test_opposite_experts_give_finite_numbers():
    first = random(6)
    assert slerp(torch.stack([first, -first]), base=torch.zeros(6).double()).isfinite().all()
