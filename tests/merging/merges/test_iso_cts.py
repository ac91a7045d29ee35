"""Iso-CTS: the authors' numbers, and an even spectrum over common and specific directions."""

import pytest
import torch

from afield.errors import MergeError
from afield.merging.merges.iso_c import iso_c
from afield.merging.merges.iso_cts import iso_cts
from tests.merging.merges.matrices import (
    MATRICES,
    STABILITY,
    change,
    low_rank,
    normal,
    numbers,
    reference,
)


@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.parametrize("domains", [2, 3])
def test_it_is_the_authors(domains, matrix):
    expected = numbers(f"merging_D{domains}")[f"out/iso_cts/{matrix}"]
    torch.testing.assert_close(iso_cts(reference(domains, matrix)), expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("case", STABILITY)
def test_float32_is_float64(case):
    assert change(iso_cts, STABILITY[case]) < 1e-4


def test_one_expert_alone_is_iso_c():
    delta = normal(1, 20, 12)
    torch.testing.assert_close(iso_cts(delta), iso_c(delta))


def test_all_directions_weigh_the_same():
    values = torch.linalg.svdvals(iso_cts(normal(3, 30, 30)))
    torch.testing.assert_close(values, values.mean().expand_as(values))


def test_without_specific_directions_it_is_iso_c():
    deltas = normal(3, 20, 12)
    torch.testing.assert_close(iso_cts(deltas, common=0.95), iso_c(deltas))


def test_the_share_of_common_directions_matters():
    deltas = normal(3, 20, 12)
    assert not torch.allclose(iso_cts(deltas, common=0.5), iso_cts(deltas))


def test_a_low_rank_has_no_specific_directions_but_those_it_has():
    deltas = low_rank(2, 96, 64)
    torch.testing.assert_close(iso_cts(deltas), iso_c(deltas))


def test_experts_that_cancel_give_nothing():
    delta = normal(30, 20)
    assert iso_cts(torch.stack([delta, -delta])).abs().max() < 1e-12


def test_the_order_of_experts_is_nothing():
    deltas = normal(3, 30, 20)
    torch.testing.assert_close(iso_cts(deltas[[2, 0, 1]]), iso_cts(deltas))


def test_experts_that_learned_nothing_give_nothing():
    assert torch.equal(iso_cts(torch.zeros(3, 8, 6)), torch.zeros(8, 6))


@pytest.mark.parametrize(
    ("experts", "shape", "common"),
    [(3, (3, 8), 0.6), (5, (5, 8), 0.5), (1, (1, 5), 0.8), (2, (2, 2), 0.0), (2, (4, 4), 1.0)],
)
def test_every_share_of_every_shape_has_a_result(experts, shape, common):
    torch.manual_seed(0)
    found = iso_cts(torch.randn(experts, *shape), common=common)
    assert found.shape == shape
    assert found.isfinite().all()


@pytest.mark.parametrize("common", [-5.0, 2.0])
def test_what_is_no_share_is_refused(common):
    with pytest.raises(MergeError, match="common="):
        iso_cts(torch.randn(2, 4, 4), common=common)
