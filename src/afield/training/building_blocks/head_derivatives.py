"""Derivatives of the cross-entropy with respect to a linear head, in closed form.

With inputs zᵢ, logits fᵢ = W zᵢ, pᵢ = softmax(fᵢ) and one-hot labels yᵢ, the loss of a sample has

    gradient   (pᵢ - yᵢ) zᵢᵀ
    Hessian    V ↦ [(diag pᵢ - pᵢ pᵢᵀ) V zᵢ] zᵢᵀ

The bias is the weight of an additional input that is always 1 (`with_bias`), and the last column of
every result. All results are C × k matrices and differentiable, so that a penalty on them costs
one ordinary backward pass; it works for a frozen head as well.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def with_bias(features: Tensor) -> Tensor:
    """Append an input that is always 1."""
    return torch.cat([features, features.new_ones(len(features), 1)], dim=1)


def loss_slopes(logits: Tensor, y: Tensor) -> Tensor:
    """Derivative of each sample's loss with respect to its logits: p - y."""
    return logits.softmax(dim=1) - F.one_hot(y, logits.shape[1])


def gradient(inputs: Tensor, logits: Tensor, y: Tensor) -> Tensor:
    """Gradient of the mean loss."""
    return loss_slopes(logits, y).T @ inputs / len(y)


def gradient_variance(inputs: Tensor, logits: Tensor, y: Tensor) -> Tensor:
    """Variance of the samples' gradients, entry by entry, with divisor m.

    It is the mean of the squares less the square of the mean; the gradients of single samples,
    which would take m times the memory of the head, are never stored.
    """
    squares = loss_slopes(logits, y).square().T @ inputs.square() / len(y)
    return squares - gradient(inputs, logits, y).square()


def hessian_product(inputs: Tensor, logits: Tensor, direction: Tensor) -> Tensor:
    """Hessian of the mean loss times a direction, or times a stack of directions."""
    p = logits.softmax(dim=1)[:, None]
    # One product of matrices for all directions is faster than one for each.
    moved = (inputs @ direction.flatten(0, -2).T).unflatten(1, (-1, p.shape[2]))
    curved = p * (moved - (p * moved).sum(dim=2, keepdim=True))
    return (curved.flatten(1).T @ inputs / len(inputs)).view_as(direction)


def hessian_diagonal(inputs: Tensor, logits: Tensor) -> Tensor:
    """Diagonal of the Hessian of the mean loss, as a matrix of the head's shape."""
    p = logits.softmax(dim=1)
    return (p * (1 - p)).T @ inputs.square() / len(inputs)
