"""Inputs moved along the gradient of a loss: what CrossGrad and its relatives share.

    X' = X + ε · c(∇_X J(X)),   J a mean over the batch, c the identity or a clip of every entry

The pass over clean inputs serves twice: its backward pass leaves the gradient on the weights, and
the one on the inputs.
"""

import torch
from torch import Tensor

from afield.errors import SpecError
from afield.training.method import Learner

__all__ = [
    "backward_perturbed_loss",
    "check_perturbation",
    "input_gradient",
    "perturb_inputs",
    "require_float_inputs",
]


def require_float_inputs(x: Tensor, name: str) -> Tensor:
    """The inputs, if they can be moved at all."""
    if not x.is_floating_point():
        kind = str(x.dtype).removeprefix("torch.")
        raise SpecError(
            f"{name} moves inputs along a gradient, and {kind} inputs have none; give it real "
            "numbers, such as the features of `afield embed`"
        )
    return x.detach()


def input_gradient(learner: Learner, loss: Tensor, x: Tensor, *, share: float) -> Tensor:
    """The gradient of a loss on the inputs; so large a share of it goes to the weights as well."""
    if share == 0:
        return learner.gradients(loss, [x])[0]
    learner.accumulate_gradients(share * loss)
    if x.grad is None:
        raise SpecError("the loss does not depend on the inputs; there is nothing to move along")
    return x.grad.div_(share)


def perturb_inputs(x: Tensor, slope: Tensor, *, epsilon: float, clip: float) -> Tensor:
    """Inputs a step up the slope, each entry of it cut to `clip`, in place; 0: as it is."""
    return torch.add(x.detach(), slope.clamp_(-clip, clip) if clip else slope, alpha=epsilon)


def backward_perturbed_loss(learner: Learner, loss: Tensor, again: Tensor, share: float) -> Tensor:
    """Add a share of the loss on moved inputs to the gradients; both losses together, to log."""
    learner.accumulate_gradients(share * again)
    return (1 - share) * loss + share * again.detach()


def check_perturbation(name: str, *, epsilons: dict[str, float], alphas: dict[str, float]) -> None:
    """Refuse steps below 0, and shares that are none."""
    for setting, value in epsilons.items():
        if value < 0:
            raise SpecError(f"{name}.{setting}={value:g}: must not be below 0")
    for setting, value in alphas.items():
        if not 0 <= value <= 1:
            raise SpecError(f"{name}.{setting}={value:g}: a share, from 0 to 1")
