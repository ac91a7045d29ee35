import math

import pytest
import torch

from afield.data.datasets.spirals import TURNS, spirals
from afield.data.domains import missing_class_warnings


@pytest.fixture(scope="module")
def domains():
    return spirals.load()


def turned(x: torch.Tensor, degrees: float) -> torch.Tensor:
    c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return x @ torch.tensor([[c, s], [-s, c]])


def off_the_arm(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Angle between a point and where its arm is at its radius, from -π to π."""
    angle = torch.atan2(x[:, 1], x[:, 0])
    arm = 1.5 * math.pi * (x.norm(dim=1) - 0.2) + math.pi * y
    return torch.remainder(angle - arm + math.pi, 2 * math.pi) - math.pi


def test_every_domain_has_two_arms_of_100_points(domains):
    assert tuple(domains) == spirals.domains == tuple(TURNS)
    assert missing_class_warnings(domains, spirals.classes) == []
    for domain in domains.values():
        assert domain.x.shape == (200, 2)
        assert domain.y.bincount().tolist() == [100, 100]


@pytest.mark.parametrize("name", TURNS)
def test_turned_back_by_its_angle_every_domain_lies_on_the_same_arms(domains, name):
    domain = domains[name]
    off = off_the_arm(turned(domain.x, -TURNS[name]), domain.y)
    # Noise of 0.05 at a radius of 0.2 is a quarter; the arms are π apart.
    assert off.abs().median() < 0.25
    assert (off.abs() < math.pi / 2).float().mean() > 0.98


@pytest.mark.parametrize("name", [name for name in TURNS if TURNS[name]])
def test_a_domain_is_turned_as_far_as_its_name_says(domains, name):
    domain = domains[name]
    far = domain.x.norm(dim=1) > 0.5
    off = off_the_arm(domain.x[far], domain.y[far]).mean()
    # Half the step to the next domain; the noise of this mean is about one degree.
    assert math.degrees(off) == pytest.approx(TURNS[name], abs=5)


def test_no_domain_is_another_one_turned(domains):
    along = torch.stack([domain.x.norm(dim=1) for domain in domains.values()])
    likeness = torch.corrcoef(along) - torch.eye(len(along))
    # Four standard deviations of the correlation of 200 independent pairs.
    assert likeness.abs().max() < 4 / 200**0.5


def test_it_is_the_same_whatever_was_drawn_before(domains):
    torch.manual_seed(5)
    again = spirals.load()
    assert all(torch.equal(again[name].x, domains[name].x) for name in TURNS)
