"""Inputs perturbed along the gradient of a loss, as in CrossGrad and related methods.

    X' = X + ε · c(∇_X J(X)),   J a mean over the batch, c the identity or a clip of every entry

One backward pass on the clean inputs computes both the gradient with respect to the weights and
the gradient with respect to the inputs. The inputs of a network for texts are its embedded tokens:
the embedding is trained on the clean inputs only, because X' is a constant.
"""

import torch
from torch import Tensor, nn

from afield.errors import SpecError
from afield.networks.text_features import TextFeatures
from afield.training.learner import Learner


def require_float_inputs(x: Tensor, name: str) -> Tensor:
    """Return the inputs, or raise `SpecError` if they have no gradient."""
    if not x.is_floating_point():
        dtype = str(x.dtype).removeprefix("torch.")
        raise SpecError(
            f"{name} moves inputs along a gradient, and {dtype} inputs have none; give real "
            "numbers, such as the features that `afield embed` writes"
        )
    return x.detach()


def movable_inputs(model: nn.Module, x: Tensor, name: str) -> Tensor:
    """Return inputs that have a gradient: real numbers themselves, or embedded tokens of texts."""
    features = getattr(model, "features", None)
    if not isinstance(features, TextFeatures):
        return require_float_inputs(x, name).requires_grad_()
    embedded = features.embed(x)
    if not embedded.requires_grad:
        return embedded.detach().requires_grad_()
    embedded.retain_grad()
    return embedded


def input_gradient(learner: Learner, loss: Tensor, x: Tensor, *, share: float) -> Tensor:
    """Gradient of a loss with respect to the inputs.

    `share` times the gradient with respect to the weights is accumulated on the weights.
    """
    if share == 0:
        return learner.gradients(loss, [x])[0]
    learner.accumulate_gradients(share * loss)
    if x.grad is None:
        raise SpecError("the loss does not depend on the inputs, so they cannot be moved")
    return x.grad.div_(share)


def perturb_inputs(x: Tensor, gradient: Tensor, *, epsilon: float, clip: float) -> Tensor:
    """Move inputs by `epsilon` times the gradient, whose entries are clipped at `clip` in place.

    A `clip` of 0 leaves the gradient unchanged.
    """
    clipped = gradient.clamp_(-clip, clip) if clip else gradient
    return torch.add(x.detach(), clipped, alpha=epsilon)


def backward_perturbed_loss(
    learner: Learner, loss: Tensor, perturbed_loss: Tensor, share: float
) -> Tensor:
    """Accumulate the gradients of `share` times the perturbed loss; return the total loss."""
    learner.accumulate_gradients(share * perturbed_loss)
    return (1 - share) * loss + share * perturbed_loss.detach()


def check_perturbation(name: str, *, epsilons: dict[str, float], alphas: dict[str, float]) -> None:
    """Raise `SpecError` for negative step lengths, and for shares outside 0 to 1."""
    for setting, value in epsilons.items():
        if value < 0:
            raise SpecError(f"{name}.{setting}={value:g}: must not be below 0")
    for setting, value in alphas.items():
        if not 0 <= value <= 1:
            raise SpecError(f"{name}.{setting}={value:g}: must be a share from 0 to 1")
