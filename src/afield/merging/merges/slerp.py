"""Slerp: spherical interpolation between two experts (Shoemake, 1985), tensor by tensor.

    merged = (sin((1 - t) Ω) θ_1 + sin(t Ω) θ_2) / sin Ω - θ_base,   Ω the angle of θ_1 and θ_2

If the two are nearly parallel (|cos Ω| > 0.9995), the interpolation is linear. The order of the two
experts matters unless t = 0.5.

Differs from the paper, which is about rotations: as usual for models, every tensor is one vector.

The angle of a tensor of more than 16.7 million entries is summed in float64, in pieces.
"""

from collections.abc import Callable
from typing import Annotated

import torch
from torch import Tensor

from afield.hyperparameters import Uniform
from afield.merging.order_statistics import TensorPieces
from afield.merging.scopes import scope, share

__all__ = ["slerp"]

# Beyond this cosine the formula would divide by nearly zero.
COLLINEAR_COSINE = 0.9995


def _in_pieces(pieces: TensorPieces, *, name: str, t: float) -> Callable[..., Tensor]:
    """The angle from one pass over the tensor, summed in float64, then a piece at a time."""
    del name
    share("t", t)
    products = torch.zeros(3, dtype=torch.float64)
    for base, deltas in pieces:
        first, second = ((base + delta).double() for delta in deltas)
        pairs = ((first, first), (second, second), (first, second))
        products += torch.stack([torch.dot(one, other).cpu() for one, other in pairs])
    lengths = products[:2].sqrt().prod()
    cosine = products[2] / lengths.clamp(min=torch.finfo(torch.float64).tiny)
    is_linear = bool(cosine.abs() > COLLINEAR_COSINE) or float(lengths) == 0
    angle = cosine.acos()
    weights = [float(((1 - t) * angle).sin()), float((t * angle).sin())]

    def merged(piece: Tensor, *, base: Tensor) -> Tensor:
        if is_linear:
            return piece[0].lerp(piece[1], t)
        total = weights[0] * (base + piece[0]) + weights[1] * (base + piece[1])
        return total / float(angle.sin()) - base

    return merged


@scope("tensor", experts=2, in_pieces=_in_pieces)
def slerp(deltas: Tensor, *, base: Tensor, t: Annotated[float, Uniform(0.0, 1.0)] = 0.5) -> Tensor:
    """Interpolate from the first expert (t = 0) to the second (t = 1)."""
    share("t", t)
    first, second = (base + delta for delta in deltas)
    lengths = first.norm() * second.norm()
    cosine = (first * second).sum() / lengths.clamp(min=torch.finfo(base.dtype).tiny)
    if cosine.abs() > COLLINEAR_COSINE or lengths == 0:
        return deltas[0].lerp(deltas[1], t)
    angle = cosine.acos()
    total = ((1 - t) * angle).sin() * first + (t * angle).sin() * second
    return total / angle.sin() - base
