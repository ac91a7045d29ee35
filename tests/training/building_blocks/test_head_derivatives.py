"""Derivatives in closed form against those that torch computes."""

import pytest
import torch
import torch.nn.functional as F

from afield.training.building_blocks.head_derivatives import (
    gradient,
    gradient_variance,
    hessian_diagonal,
    hessian_product,
    with_bias,
)


@pytest.fixture
def problem():
    """Inputs with a bias, labels, and the mean loss as a function of the head."""
    generator = torch.Generator().manual_seed(0)
    inputs = with_bias(torch.randn(7, 4, generator=generator, dtype=torch.float64))
    y = torch.randint(3, (7,), generator=generator)
    head = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    return inputs, y, head, lambda head: F.cross_entropy(inputs @ head.T, y)


def test_the_last_input_is_one():
    assert with_bias(torch.zeros(2, 3)).tolist() == [[0, 0, 0, 1]] * 2


def test_the_gradient_and_its_variance_over_samples(problem):
    inputs, y, head, loss = problem
    torch.testing.assert_close(gradient(inputs, inputs @ head.T, y), torch.func.grad(loss)(head))
    alone = torch.func.vmap(
        torch.func.grad(lambda head, x, y: F.cross_entropy(head @ x, y)), in_dims=(None, 0, 0)
    )(head, inputs, y)
    result = gradient_variance(inputs, inputs @ head.T, y)
    torch.testing.assert_close(result, alone.var(dim=0, correction=0))


def test_the_hessian_times_directions_and_its_diagonal(problem):
    inputs, _, head, loss = problem
    hessian = torch.autograd.functional.hessian(loss, head).view(15, 15)
    directions = torch.randn(2, 3, 5, dtype=torch.float64)
    result = hessian_product(inputs, inputs @ head.T, directions)
    torch.testing.assert_close(result, (directions.view(2, 15) @ hessian).view(2, 3, 5))
    alone = hessian_product(inputs, inputs @ head.T, directions[0])
    torch.testing.assert_close(alone, result[0])
    diagonal = hessian_diagonal(inputs, inputs @ head.T)
    torch.testing.assert_close(diagonal, hessian.diagonal().view(3, 5))
