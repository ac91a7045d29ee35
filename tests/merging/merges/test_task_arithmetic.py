import pytest
import torch

from afield.merging.job import merge
from afield.merging.merges.average import average
from afield.merging.merges.task_arithmetic import task_arithmetic
from tests.merging.merges.numbers import random, reference


@pytest.mark.parametrize("experts", [2, 3])
def test_it_gives_the_authors_numbers(experts):
    base, tuned, expected = reference(experts, "task_arithmetic")
    torch.testing.assert_close(merge("task_arithmetic", base, tuned), expected, rtol=0, atol=1e-8)


def test_scaled_by_the_number_of_experts_it_is_the_average():
    deltas = random(4, 7)
    torch.testing.assert_close(task_arithmetic(deltas) / 4, average(deltas))
