"""Arithmetic on lists of tensors, such as all parameters of a network, in one call each."""

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["add", "assign", "clone_tensors", "flatten", "mix", "set_gradients", "unflatten"]


def flatten(tensors: Sequence[Tensor]) -> Tensor:
    """All entries of all tensors, one after the other, as a new vector."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def unflatten(vector: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """A vector's pieces in the shapes of these tensors: views, writing to them writes to it."""
    pieces = vector.split([tensor.numel() for tensor in like])
    return [piece.view(tensor.shape) for piece, tensor in zip(pieces, like, strict=True)]


def clone_tensors(tensors: Sequence[Tensor]) -> list[Tensor]:
    """New tensors with the same values and memory layout, without their history."""
    found = [torch.empty_like(tensor, requires_grad=False) for tensor in tensors]
    assign(found, tensors)
    return found


def set_gradients(parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
    """Give parameters these gradients, as copies in the memory layout of each parameter.

    Fused optimisers read both as plain memory: another layout would be other numbers, unnoticed.
    """
    for parameter in parameters:
        parameter.grad = torch.empty_like(parameter, requires_grad=False)
    assign([parameter.grad for parameter in parameters if parameter.grad is not None], gradients)


@torch.no_grad()
def assign(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Overwrite tensors with values."""
    if tensors:
        torch._foreach_copy_(list(tensors), list(values))


@torch.no_grad()
def add(tensors: Sequence[Tensor], others: Sequence[Tensor], *, times: float = 1.0) -> None:
    """Add to tensors so many times the others."""
    if tensors:
        torch._foreach_add_(list(tensors), list(others), alpha=times)


@torch.no_grad()
def mix(tensors: Sequence[Tensor], others: Sequence[Tensor], *, share: float) -> None:
    """Move tensors towards the others by a share of the way."""
    if tensors:
        torch._foreach_lerp_(list(tensors), list(others), share)
