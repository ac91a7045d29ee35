"""TSV: the authors' numbers, and a meaning where theirs have none."""

import pytest
import torch

from afield.merging.merges.tsv import tsv
from tests.merging.merges.matrices import (
    MATRICES,
    STABILITY,
    change,
    leading_part,
    low_rank,
    normal,
    numbers,
    reference,
    steep,
)


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
