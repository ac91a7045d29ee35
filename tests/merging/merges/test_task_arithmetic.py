import torch

from afield.merging.merges.average import average
from afield.merging.merges.task_arithmetic import task_arithmetic
from tests.merging.merges.numbers import random


def test_scaled_by_the_number_of_experts_it_is_the_average():
    deltas = random(4, 7)
    torch.testing.assert_close(task_arithmetic(deltas) / 4, average(deltas))
