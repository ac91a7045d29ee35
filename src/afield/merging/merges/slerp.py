"""Slerp: spherical interpolation between two experts (Shoemake, 1985), tensor by tensor.

    merged = (sin((1 - t) Ω) θ_1 + sin(t Ω) θ_2) / sin Ω - θ_base,   Ω the angle of θ_1 and θ_2

If the two are nearly parallel (|cos Ω| > 0.9995), the interpolation is linear. The order of the two
experts matters unless t = 0.5.

Differs from the paper, which is about rotations: as usual for models, every tensor is one vector.
"""

from typing import Annotated

import torch
from torch import Tensor

from afield.hyperparameters import Uniform
from afield.merging.scopes import scope, share

__all__ = ["slerp"]

# Beyond this cosine the formula would divide by nearly zero.
COLLINEAR_COSINE = 0.9995


@scope("tensor", experts=2)
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
