import torch

from afield.merging.merges.average import average
from tests.merging.merges.numbers import random


def test_it_is_the_mean_of_the_experts():
    deltas = random(3, 5, 4)
    torch.testing.assert_close(average(deltas), (deltas[0] + deltas[1] + deltas[2]) / 3)
