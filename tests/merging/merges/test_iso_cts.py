"""Iso-CTS: the authors' numbers, and an even spectrum over common and specific directions."""

import pytest
import torch

from afield.merging.merges.iso_c import iso_c
from afield.merging.merges.iso_cts import iso_cts
from tests.merging.merges.matrices import low_rank, normal


@pytest.mark.parametrize(
    ("deltas", "settings"),
    [
        (normal(1, 20, 12), {}),
        # Without specific directions, and of a low rank, which has none but those it has.
        (normal(3, 20, 12), {"common": 0.95}),
        (low_rank(2, 96, 64), {}),
    ],
)
def test_in_its_limits_it_is_iso_c(deltas, settings):
    torch.testing.assert_close(iso_cts(deltas, **settings), iso_c(deltas))


def test_all_directions_weigh_the_same():
    values = torch.linalg.svdvals(iso_cts(normal(3, 30, 30)))
    torch.testing.assert_close(values, values.mean().expand_as(values))


def test_the_share_of_common_directions_matters():
    deltas = normal(3, 20, 12)
    assert not torch.allclose(iso_cts(deltas, common=0.5), iso_cts(deltas))


@pytest.mark.parametrize(
    ("experts", "shape", "common"),
    [(3, (3, 8), 0.6), (5, (5, 8), 0.5), (1, (1, 5), 0.8), (2, (2, 2), 0.0), (2, (4, 4), 1.0)],
)
def test_every_share_of_every_shape_has_a_result(experts, shape, common):
    torch.manual_seed(0)
    result = iso_cts(torch.randn(experts, *shape), common=common)
    assert result.shape == shape
    assert result.isfinite().all()


def test_experts_that_cancel_give_nothing():
    delta = normal(30, 20)
    assert iso_cts(torch.stack([delta, -delta])).abs().max() < 1e-12
