"""TSV: the authors' numbers, and a meaning where theirs have none."""

import pytest
import torch

from afield.merging.merges.tsv import tsv
from tests.merging.merges.matrices import leading_part, low_rank, normal, steep


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


@pytest.mark.parametrize(("deltas", "rank"), [(low_rank(2, 96, 64), 32), (normal(5, 3, 8), 3)])
def test_a_low_rank_is_not_filled_up_and_more_experts_than_directions_merge(deltas, rank):
    assert torch.linalg.matrix_rank(tsv(deltas)) == rank


def test_an_expert_that_learned_nothing_changes_only_the_share():
    deltas = torch.stack([normal(20, 12), torch.zeros(20, 12, dtype=torch.float64)])
    torch.testing.assert_close(tsv(deltas), leading_part(deltas[0], 6))


def test_a_transposed_problem_has_the_transposed_result():
    deltas = normal(3, 20, 12)
    torch.testing.assert_close(tsv(deltas.mT), tsv(deltas).mT)


def test_a_scale_passes_through():
    deltas = normal(3, 20, 12)
    torch.testing.assert_close(tsv(1e-9 * deltas), 1e-9 * tsv(deltas), rtol=1e-7, atol=0)


@pytest.mark.slow
def test_exact_is_nearer_to_float64():
    deltas = steep(3, 384, 384, ratio=200).float()
    expected = tsv(deltas.double())
    exact, quick = ((tsv(deltas, exact=way) - expected).norm() for way in (True, False))
    assert 1e-6 * expected.norm() > exact
    assert exact < 0.5 * quick
    assert quick < 1e-4 * expected.norm()
