"""Leading directions: those of an SVD where it determines them, and none where it does not."""

from itertools import product

import pytest
import torch
from threadpoolctl import threadpool_info

from afield.merging.spectral import (
    DIRECTION_FLOOR,
    ROUNDING_FLOOR,
    _inverse_roots,
    leading_triplets,
    polar_factor,
    shared_basis,
)
from tests.merging.merges.matrices import normal

SHAPES = [(30, 20), (20, 30), (20, 20)]


def with_values(m: int, n: int, values: torch.Tensor, *, seed: int = 0) -> torch.Tensor:
    left = torch.linalg.qr(normal(m, len(values), seed=seed)).Q
    return (left * values) @ torch.linalg.qr(normal(n, len(values), seed=seed + 1)).Q.mT


def thin_polar(columns: torch.Tensor) -> torch.Tensor:
    p, _, qh = torch.linalg.svd(columns, full_matrices=False)
    return p @ qh


def experts(domains: int, m: int, n: int) -> torch.Tensor:
    """Steep spectra, and directions that experts share in part: as after fine-tuning."""
    rank, shared = min(m, n), (normal(m, min(m, n)), normal(n, min(m, n), seed=1))
    values = torch.arange(1, rank + 1, dtype=torch.float64) ** -1.0
    made = [
        ((shared[0] + normal(m, rank, seed=2 * d + 2)) * values)
        @ (shared[1] + normal(n, rank, seed=2 * d + 3)).mT
        for d in range(domains)
    ]
    return torch.stack(made).float()


@pytest.mark.parametrize(
    ("shape", "count"),
    [
        *((shape, 7) for shape in SHAPES),
        *product([(300, 150), (150, 300), (150, 150)], [1, 50, 150]),
    ],
)
def test_leading_triplets_are_those_of_an_svd(shape, count):
    matrix = normal(*shape)
    u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
    left, values, right = leading_triplets(matrix, count)
    torch.testing.assert_close(values, s[:count])
    torch.testing.assert_close((left * values) @ right.mT, (u * s)[:, :count] @ vh[:count])
    if shape in SHAPES:
        sign = (left * u[:, :count]).sum(dim=0).sign()
        torch.testing.assert_close(left * sign, u[:, :count])
        torch.testing.assert_close(right * sign, vh[:count].mT)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_largest_entry_of_a_left_vector_is_positive(shape):
    left = leading_triplets(normal(*shape), 10).left
    assert (left.gather(0, left.abs().argmax(dim=0, keepdim=True)) > 0).all()


def test_weak_directions_are_right_although_they_are_squared():
    matrix = with_values(60, 40, torch.logspace(0, -4, 40, dtype=torch.float64)).float()
    result = leading_triplets(matrix, 40)
    torch.testing.assert_close(
        result.values, torch.linalg.svdvals(matrix.double()), rtol=1e-6, atol=0
    )
    assert (result.left.mT @ result.left - torch.eye(40)).abs().max() < 1e-6


def test_rounding_is_no_direction():
    matrix = (normal(40, 5) @ normal(5, 30, seed=1)).float()
    assert torch.linalg.matrix_rank(matrix.double()) == 30
    assert leading_triplets(matrix, 20).left.shape == (40, 5)
    assert leading_triplets(torch.zeros(8, 6), 3).values.shape == (0,)


def test_what_is_small_beside_something_else_is_no_direction():
    matrix = normal(20, 10)
    assert len(leading_triplets(matrix, 4, scale=torch.tensor(1e9).double()).values) == 0


@pytest.mark.parametrize("shape", [(30, 20), (20, 20), (300, 150)])
def test_the_polar_factor_is_that_of_an_svd(shape):
    columns = normal(*shape)
    torch.testing.assert_close(polar_factor(columns), thin_polar(columns))


def test_a_polar_factor_is_not_filled_up():
    columns = torch.nn.functional.normalize(normal(9, 1), dim=0).expand(9, 4)
    torch.testing.assert_close(polar_factor(columns), columns / 2)


def test_many_directions_that_are_nearly_one_are_one():
    columns = torch.linalg.qr(normal(40, 10)).Q
    twice = torch.cat([columns, columns + 1e-6 * normal(40, 10, seed=1)], dim=1)
    assert torch.linalg.matrix_rank(polar_factor(twice), rtol=1e-3) == 10


def test_a_weak_direction_by_chance_is_kept():
    values = torch.ones(512, dtype=torch.float64)
    values[-1] = 3e-5
    columns = with_values(512, 512, values)
    torch.testing.assert_close(polar_factor(columns), thin_polar(columns), rtol=0, atol=1e-6)


def test_threads_outside_of_torch_are_as_before():
    before = [each["num_threads"] for each in threadpool_info()]
    leading_triplets(normal(200, 150), 50)
    assert [each["num_threads"] for each in threadpool_info()] == before


@pytest.fixture
def no_fallback(monkeypatch):
    """The exact way is closed."""
    monkeypatch.setattr("afield.merging.spectral.polar_factor", None)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(512, 512), (900, 400), (400, 900)])
def test_the_quick_way_is_as_right_as_an_svd_in_float32(no_fallback, monkeypatch, shape):
    deltas = experts(3, *shape)
    left, values, right = shared_basis(deltas, exact=False)
    monkeypatch.undo()
    exact = shared_basis(deltas.double(), exact=True)
    result, expected = (left * values) @ right.mT, (exact.left * exact.values) @ exact.right.mT
    assert (result - expected).norm() < 1e-4 * expected.norm()
    assert ((left.double() - exact.left).norm(dim=0) ** 2).mean() ** 0.5 < 2e-3


@pytest.mark.slow
@pytest.mark.parametrize(
    "deltas",
    [
        experts(1, 512, 512).expand(3, 512, 512) + 1e-7 * normal(3, 512, 512).float(),
        torch.cat([experts(3, 512, 512), experts(1, 512, 512)]),
        (normal(3, 512, 16) @ normal(3, 16, 512, seed=1)).float(),
        torch.stack(
            [with_values(512, 512, torch.logspace(0, -12, 512).double(), seed=d) for d in range(3)]
        ).float(),
        torch.zeros(3, 512, 512),
    ],
    ids=["nearly alike", "two alike", "low rank", "very steep", "zero"],
)
def test_the_quick_way_gives_up_where_float32_is_not_enough(deltas):
    result, exact = (shared_basis(deltas, exact=exact) for exact in (False, True))
    assert all(torch.equal(a, b) for a, b in zip(result, exact, strict=True))


def test_a_direction_at_the_floor_is_none():
    largest = torch.tensor(1.0, dtype=torch.float64)
    # The floor is rounded to float32.
    floor = float(torch.tensor(DIRECTION_FLOOR**2))
    weak = torch.tensor([floor, 0.25, 1.0], dtype=torch.float64)
    assert _inverse_roots(weak, largest, 3).tolist() == [0.0, 2.0, 1.0]
    # One in 256 may be weak by chance, unless it is rounding.
    many = torch.ones(256, dtype=torch.float64)
    many[0] = floor
    assert _inverse_roots(many, largest, 256)[0] == pytest.approx(1 / DIRECTION_FLOOR)
    assert _inverse_roots(many[:255], largest, 255)[0] == 0
    many[1] = DIRECTION_FLOOR**2
    assert _inverse_roots(many, largest, 256)[0] == 0
    many[0], many[1] = float(torch.tensor(ROUNDING_FLOOR**2)), 1.0
    assert _inverse_roots(many, largest, 256)[0] == 0
