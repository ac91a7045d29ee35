import pytest
import torch

from afield.merging.merges.ties import ties
from afield.merging.order_statistics import Deltas
from tests.merging.merges.numbers import random


def merged(deltas, **settings):
    """TIES of one vector, which comes in two pieces."""
    half = deltas.shape[1] // 2
    pieces = [deltas[:, :half], deltas[:, half:]]
    piecewise = ties(Deltas(len(deltas), deltas.shape[1], lambda: pieces), **settings)
    return torch.cat([piecewise(piece) for piece in pieces])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_expert_keeps_one_more_than_its_share_of_the_largest(dtype):
    delta = random(1, 1000, dtype=dtype)
    result = merged(delta, density=0.2)
    largest = delta[0].abs().sort(descending=True).indices[:201]
    expected = torch.zeros_like(delta[0])
    expected[largest] = delta[0, largest]
    assert torch.equal(result, expected)


def test_the_formula_again_slowly():
    deltas = random(5, 300)
    least = deltas.abs().sort(dim=1).values[:, 300 - int(0.3 * 300) - 1]
    expected = []
    for column in deltas.T:
        kept = [float(x) for x, bound in zip(column, least, strict=True) if abs(x) >= bound]
        agree = [x for x in kept if x * sum(kept) > 0]
        expected.append(sum(agree) / max(len(agree), 1))
    torch.testing.assert_close(merged(deltas, density=0.3), torch.tensor(expected).double())


@pytest.mark.parametrize("scale", [1.0, 0.1, -1.0, -0.1])
def test_where_changes_cancel_the_sign_of_the_whole_model_decides(scale):
    up = torch.tensor([[2.0, 1.0, 3.0, 1.0], [-2.0, 1.0, 3.0, -1.0]])
    expected = scale * torch.tensor([2.0, 1.0, 3.0, 1.0])
    torch.testing.assert_close(merged(scale * up, density=1.0), expected)
    torch.testing.assert_close(merged(-up, density=1.0), torch.tensor([-2.0, -1.0, -3.0, -1.0]))
    undecided = torch.tensor([[2.0, 1.0], [-2.0, -1.0]])
    assert torch.equal(merged(undecided, density=1.0), torch.zeros(2))


def test_unchanged_tensors_count_so_more_of_the_others_is_kept():
    delta = random(1, 100)
    alone = merged(delta, density=0.2).count_nonzero()
    among = merged(torch.cat([delta, torch.zeros(1, 300)], dim=1), density=0.2).count_nonzero()
    assert (int(alone), int(among)) == (21, 81)
