"""TSV: the authors' numbers, and a meaning where theirs have none."""

from functools import cache

import numpy as np
import pytest
import torch

from afield.merging.merges.tsv import tsv
from tests.files import GOLDEN

DATA = GOLDEN
MATRICES = ["a.weight", "b.weight", "c.weight"]


@cache
def numbers(file: str) -> dict[str, torch.Tensor]:
    with np.load(DATA / f"{file}.npz") as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays.files}


def reference(domains: int, matrix: str) -> torch.Tensor:
    """The deltas of the reference's experts."""
    return torch.stack(
        [numbers(f"merging_D{domains}")[f"delta{d}/{matrix}"] for d in range(domains)]
    )


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def steep(domains: int, m: int, n: int, *, ratio: float) -> torch.Tensor:
    """Deltas whose singular values fall by a power law, by `ratio` over those that are kept."""
    rank = min(m, n)
    power = np.log(ratio) / np.log(rank // domains)
    values = torch.arange(1, rank + 1, dtype=torch.float64) ** -power
    left = torch.linalg.qr(normal(domains, m, rank, seed=1)).Q
    right = torch.linalg.qr(normal(domains, n, rank, seed=2)).Q
    return (left * values) @ right.mT


def low_rank(domains: int, m: int, n: int) -> torch.Tensor:
    return normal(domains, m, 16, seed=1) @ normal(domains, 16, n, seed=2)


# Three experts do not divide ranks of 64 and 128, two do.
STABILITY = {
    "full rank": normal(2, 96, 64),
    "rank 16": low_rank(3, 96, 64),
    "rank 16, alike": low_rank(1, 96, 64).expand(3, 96, 64),
    "nearly alike (1e-6)": normal(96, 64) + 1e-6 * normal(2, 96, 64, seed=1),
    "alike": normal(96, 64).expand(3, 96, 64),
    "zero": torch.zeros(3, 96, 64, dtype=torch.float64),
    "one is zero": torch.cat([normal(2, 96, 64), torch.zeros(1, 96, 64)]),
    "wide": normal(2, 64, 192),
    "steep (200)": steep(2, 128, 128, ratio=200),
    "steep (400), indivisible": steep(3, 128, 128, ratio=400),
    "square, indivisible": normal(3, 128, 128),
}


def change(merge, deltas: torch.Tensor) -> float:
    """By how much float32 changes a result: of the same numbers, and of numbers cut to float32."""
    small = deltas.float()
    found = merge(small).double()
    gaps = [(found - merge(each)).norm().item() for each in (small.double(), deltas)]
    return max(gaps) / (merge(deltas).norm().item() or 1.0)


def leading_part(delta: torch.Tensor, count: int) -> torch.Tensor:
    u, s, vh = torch.linalg.svd(delta, full_matrices=False)
    return (u[:, :count] * s[:count]) @ vh[:count]


@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.parametrize("domains", [2, 3])
def test_it_is_the_authors(domains, matrix):
    expected = numbers(f"merging_D{domains}")[f"out/tsv/{matrix}"]
    torch.testing.assert_close(tsv(reference(domains, matrix)), expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("case", STABILITY)
def test_float32_is_float64(case):
    assert change(tsv, STABILITY[case]) < 1e-4


def test_one_expert_alone_is_that_expert():
    delta = normal(1, 20, 12)
    torch.testing.assert_close(tsv(delta), delta[0])


def test_identical_experts_are_one_of_them_cut_to_its_share_of_the_rank():
    delta = normal(20, 12)
    torch.testing.assert_close(tsv(delta.expand(3, 20, 12)), leading_part(delta, 4))


def test_experts_in_separate_directions_simply_add():
    deltas = torch.zeros(2, 8, 6, dtype=torch.float64)
    deltas[0, :4, :3], deltas[1, 4:, 3:] = normal(4, 3), normal(4, 3, seed=1)
    torch.testing.assert_close(tsv(deltas), deltas.sum(dim=0))


def test_a_low_rank_is_not_filled_up():
    deltas = low_rank(2, 96, 64)
    assert torch.linalg.matrix_rank(tsv(deltas)) == 32


def test_an_expert_that_learned_nothing_changes_only_the_share():
    deltas = torch.stack([normal(20, 12), torch.zeros(20, 12, dtype=torch.float64)])
    torch.testing.assert_close(tsv(deltas), leading_part(deltas[0], 6))


@pytest.mark.parametrize("deltas", [normal(3, 20, 12), normal(3, 12, 20), low_rank(3, 40, 40)])
def test_the_order_of_experts_is_nothing(deltas):
    torch.testing.assert_close(tsv(deltas[[2, 0, 1]]), tsv(deltas))


def test_a_transposed_problem_has_the_transposed_result():
    deltas = normal(3, 20, 12)
    torch.testing.assert_close(tsv(deltas.mT), tsv(deltas).mT)


def test_more_experts_than_directions_still_merge():
    deltas = normal(5, 3, 8)
    assert torch.linalg.matrix_rank(tsv(deltas)) == 3


def test_a_scale_passes_through():
    deltas = normal(3, 20, 12)
    torch.testing.assert_close(tsv(1e-9 * deltas), 1e-9 * tsv(deltas), rtol=1e-7, atol=0)


@pytest.mark.parametrize("exact", [False, True])
def test_deltas_are_left_alone_and_keep_their_type(exact):
    deltas = normal(3, 20, 12).float()
    before = deltas.clone()
    found = tsv(deltas, exact=exact)
    assert (found.dtype, found.shape) == (torch.float32, (20, 12))
    assert torch.equal(deltas, before)


@pytest.mark.slow
def test_exact_is_nearer_to_float64():
    deltas = steep(3, 384, 384, ratio=200).float()
    expected = tsv(deltas.double())
    exact, quick = ((tsv(deltas, exact=way) - expected).norm() for way in (True, False))
    assert 1e-6 * expected.norm() > exact
    assert exact < 0.5 * quick
    assert quick < 1e-4 * expected.norm()
