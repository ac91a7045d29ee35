import torch

from afield.merging.merges.fisher import fisher
from tests.merging.merges.numbers import random


def test_equal_information_gives_the_mean():
    deltas = random(3, 8)
    torch.testing.assert_close(
        fisher(deltas, statistics=torch.full((3, 8), 0.3).double()), deltas.mean(0)
    )


def test_an_expert_that_alone_is_sure_is_followed():
    deltas, sure = random(3, 8), torch.zeros(3, 8).double()
    sure[1] = 1e6
    torch.testing.assert_close(fisher(deltas, statistics=sure), deltas[1], rtol=1e-6, atol=1e-6)


def test_entries_are_weighted_each_by_itself():
    deltas = torch.tensor([[1.0, 1.0], [3.0, 3.0]])
    sure = torch.tensor([[1.0, 3.0], [3.0, 1.0]])
    torch.testing.assert_close(fisher(deltas, statistics=sure), torch.tensor([2.5, 1.5]))


def test_where_nobody_is_sure_it_is_the_mean():
    deltas = random(2, 4)
    torch.testing.assert_close(fisher(deltas, statistics=torch.zeros(2, 4)), deltas.mean(0))
