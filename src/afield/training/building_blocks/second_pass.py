"""A second pass over the same batch at other weights, as sharpness-aware methods need it.

    g = ∇R(θ),   then ∇R(θ + ε(g))

The second pass differs from the first in the weights alone. BatchNorm layers normalize with the
batch, but their running statistics come from the first pass only; dropout layers draw the same
masks. The weights are restored from a copy: subtracting ε again would leave rounding errors.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from afield.networks.freezing import keep_batchnorm
from afield.tensors import add, assign, clone_tensors
from afield.training.learner import Learner


def backward_at_offset(
    learner: Learner, loss: Callable[[], Tensor], offset: Callable[[list[Tensor]], Sequence[Tensor]]
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Compute the gradient of a loss at θ + ε and leave it on `grad` of the parameters.

    Parameters
    ----------
    learner
        Its parameters are θ, before and afterwards.
    loss
        Computes the loss with the present weights.
    offset
        Computes ε from the gradient at θ.

    Returns
    -------
    tuple
        The loss at θ, the loss at θ + ε, and the gradient at θ.
    """
    parameters = learner.parameters()
    device = parameters[0].device
    # The generators are restored after the first pass, so that the second one draws the same.
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        here = loss()
    gradient = learner.gradients(here)
    start = clone_tensors(parameters)
    add(parameters, offset(gradient))
    learner.optimizer.zero_grad()
    with keep_batchnorm(learner.model):
        there = loss()
        learner.accumulate_gradients(there)
    assign(parameters, start)
    return here.detach(), there.detach(), gradient


def norm(tensors: Sequence[Tensor]) -> Tensor:
    """Euclidean norm of all tensors together."""
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(tensors))))
