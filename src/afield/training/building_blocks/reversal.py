"""The identity with a reversed gradient, through which two sides train against each other."""

from typing import Any, cast

import torch
from torch import Tensor

__all__ = ["reverse_gradient"]


def reverse_gradient(x: Tensor, strength: float) -> Tensor:
    """Return the input, whose gradient will be multiplied by minus `strength`."""
    return cast(Tensor, _ReverseGradient.apply(x, strength))


class _ReverseGradient(torch.autograd.Function):
    """The identity with a reversed gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, strength: float) -> Tensor:
        """Return the input unchanged."""
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Reverse the gradient and scale it by `strength`."""
        return -ctx.strength * gradients[0], None
