import pytest
import torch

from afield.errors import MergeError
from afield.merging.merges.cart import cart
from tests.merging.merges.matrices import leading_part, normal


@pytest.mark.parametrize(("rank", "count"), [(0.01, 1), (0.3, 3), (0.5, 6)])
def test_the_formula_again_slowly(rank, count):
    deltas = normal(4, 20, 12)
    mean = deltas.mean(0)
    own = sum(leading_part(delta - mean, count) for delta in deltas)
    torch.testing.assert_close(cart(deltas, rank=rank, strength=1.7), mean + 1.7 * own)


def test_two_experts_or_the_full_rank_give_the_mean():
    deltas = normal(3, 20, 12)
    torch.testing.assert_close(cart(deltas[:2]), deltas[:2].mean(0))
    torch.testing.assert_close(cart(deltas, rank=1.0), deltas.mean(0))


def test_identical_experts_are_one_of_them_and_nothing_is_nothing():
    delta = normal(1, 8, 6).float()
    assert torch.equal(cart(delta.expand(3, 8, 6), strength=1e6), delta[0])
    assert not cart(0 * delta).any()


def test_a_rank_that_is_no_share_is_refused():
    with pytest.raises(MergeError, match=r"rank=16.0: must be a share"):
        cart(normal(3, 4, 4), rank=16.0)
