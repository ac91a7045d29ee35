import pytest
import torch

from afield.errors import MergeError
from afield.merging.merges.ace import ace
from tests.merging.merges.matrices import low_rank, normal, numbers, reference

UNEQUAL = torch.tensor([1.0, 30.0, 900.0], dtype=torch.float64)[:, None, None]


@pytest.mark.parametrize("matrix", ["a.weight", "b.weight"])
def test_matrices_are_merged_to_the_authors_numbers(matrix):
    deltas, expected = reference(3, matrix), numbers("merging_data_free")
    torch.testing.assert_close(ace(deltas), expected[f"ace/D3/{matrix}"], rtol=0, atol=1e-10)
    unequal = ace(deltas * UNEQUAL)
    torch.testing.assert_close(unequal, expected[f"ace_unequal/D3/{matrix}"], rtol=1e-8, atol=0)


def test_far_above_the_ridge_it_is_least_squares_for_inputs_that_look_like_the_deltas():
    # Rows that sum to 0 in every column have no mean, so neither centering nor the prior acts.
    deltas = normal(3, 6, 4)
    deltas -= deltas.mean(dim=1, keepdim=True)
    gram = deltas.mT @ deltas
    prior = gram.sum(0).mean(0)
    expected = (deltas @ gram).sum(0) @ (gram.sum(0) + prior).inverse()
    torch.testing.assert_close(ace(deltas, ridge=1e-12, heterogeneity=9.0), expected)


def test_far_below_the_ridge_it_is_the_mean_without_the_mean_of_the_rows():
    deltas = 1e-6 * normal(3, 6, 4)
    mean = deltas.mean(0)
    torch.testing.assert_close(ace(deltas), mean - mean.mean(0), rtol=1e-6, atol=0)


def test_an_expert_that_learned_nothing_changes_nothing():
    deltas = normal(3, 5, 4)
    torch.testing.assert_close(ace(torch.cat([deltas, 0 * deltas[:1]])), ace(deltas))
    assert not ace(0 * deltas).any()


def test_rounding_of_low_rank_deltas_is_not_raised():
    deltas = low_rank(3, 96, 64)[:, :, :] * UNEQUAL
    exact, short = ace(deltas, directions=0.9), ace(deltas.float(), directions=0.9).double()
    assert (exact - short).norm() < 1e-3 * exact.norm()


def test_every_setting_matters_for_heterogeneous_experts():
    deltas = normal(3, 20, 12) * UNEQUAL
    usual = ace(deltas)
    for settings in ({"directions": 0.6}, {"heterogeneity": 1e9}, {"ridge": 0.1}):
        assert not torch.allclose(ace(deltas, **settings), usual)


@pytest.mark.parametrize(("name", "value"), [("ridge", 0.0), ("directions", 1.5)])
def test_settings_that_make_no_sense_are_refused(name, value):
    with pytest.raises(MergeError, match=f"{name}={value}"):
        ace(normal(2, 3, 3), **{name: value})
