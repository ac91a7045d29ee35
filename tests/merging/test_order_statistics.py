"""Exact order statistics of pieces, against sorting the whole."""

import pytest
import torch

from afield.merging.order_statistics import Deltas, sorted_entries

TYPES = [torch.float32, torch.float64]


def rows(kind, dtype):
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(3, 2000, generator=generator, dtype=torch.float64)
    made = {
        "normal": normal,
        "tiny": normal * 1e-42,
        "huge": normal * 1e37,
        "near": 1 + normal * 1e-6,
        "few values": normal.round(),
        "zeros": torch.zeros_like(normal) * normal.sign(),
        "negative": -normal.abs(),
    }
    return made[kind].to(dtype)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    "kind", ["normal", "tiny", "huge", "near", "few values", "zeros", "negative"]
)
def test_it_is_what_sorting_the_whole_gives(kind, dtype):
    values, ranks = rows(kind, dtype), [0, 1, 700, 1000, 1998, 1999]
    result = sorted_entries(values.split(333, dim=1), ranks)
    assert result.dtype == dtype
    assert torch.equal(result, values.sort(dim=1).values[:, ranks])


@pytest.mark.parametrize("dtype", TYPES)
def test_every_rank_of_a_few_entries_is_right(dtype):
    values = torch.tensor([[0.5, -0.0, 0.0, -3.0, 0.5, 1e-45, float("inf")]], dtype=dtype)
    assert torch.equal(sorted_entries([values], range(7)), values.sort(dim=1).values)


def test_deltas_are_sorted_by_magnitude_or_by_any_function_of_a_piece():
    values = rows("normal", torch.float32)
    deltas = Deltas(3, 2000, lambda: values.split(512, dim=1))
    assert torch.equal(deltas.sorted_entries([5]), values.abs().sort(dim=1).values[:, 5:6])
    cubes = deltas.sorted_entries([1500], of=lambda piece: piece**3)
    assert torch.equal(cubes, (values**3).sort(dim=1).values[:, 1500:1501])
