"""Arithmetic on lists of tensors, such as all parameters of a network."""

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["add", "assign", "clone_tensors", "flatten", "mix", "set_gradients", "unflatten"]


def flatten(tensors: Sequence[Tensor]) -> Tensor:
    """Concatenate the entries of all tensors to a new vector."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def unflatten(vector: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Split a vector into views with the shapes of the tensors in `like`."""
    pieces = vector.split([tensor.numel() for tensor in like])
    return [piece.view(tensor.shape) for piece, tensor in zip(pieces, like, strict=True)]


def clone_tensors(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copy tensors with their memory layout, without gradient history."""
    copies = [torch.empty_like(tensor, requires_grad=False) for tensor in tensors]
    assign(copies, tensors)
    return copies


def set_gradients(parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
    """Set the gradients of parameters to copies in the memory layout of each parameter.

    Fused optimizers read parameter and gradient as plain memory, so a gradient in another layout
    would silently be applied to the wrong entries.
    """
    for parameter in parameters:
        parameter.grad = torch.empty_like(parameter, requires_grad=False)
    assign([parameter.grad for parameter in parameters if parameter.grad is not None], gradients)


@torch.no_grad()
def assign(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Overwrite tensors with values, in place."""
    if tensors:
        torch._foreach_copy_(list(tensors), list(values))


@torch.no_grad()
def add(tensors: Sequence[Tensor], others: Sequence[Tensor], *, times: float = 1.0) -> None:
    """Add `times` the others to tensors, in place."""
    if tensors:
        torch._foreach_add_(list(tensors), list(others), alpha=times)


@torch.no_grad()
def mix(tensors: Sequence[Tensor], others: Sequence[Tensor], *, share: float) -> None:
    """Interpolate linearly towards the others, in place: ``share=1`` gives the others."""
    if tensors:
        torch._foreach_lerp_(list(tensors), list(others), share)
