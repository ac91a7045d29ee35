"""Slerp: between two experts along the sphere (Shoemake, 1985), tensor by tensor.

    merged = (sin((1 - t) Ω) θ_1 + sin(t Ω) θ_2) / sin Ω - θ_base,   Ω the angle of θ_1 and θ_2

Where the two have nearly one direction (|cos Ω| > 0.9995), the straight line instead.
Differs from the paper, which is about rotations: as done with models, every tensor is one vector.
The order of the two experts matters unless t = 0.5.
"""

from typing import Annotated

import torch
from torch import Tensor

from afield.hyperparameters import Uniform
from afield.merging.scopes import scope, share

__all__ = ["slerp"]

# Beyond this cosine the sphere is flat: the formula would divide by nearly nothing.
COLLINEAR_COSINE = 0.9995


@scope("tensor", experts=2)
def slerp(deltas: Tensor, *, base: Tensor, t: Annotated[float, Uniform(0.0, 1.0)] = 0.5) -> Tensor:
    """From the first expert (t = 0) to the second (t = 1)."""
    share("t", t)
    first, second = (base + delta for delta in deltas)
    lengths = first.norm() * second.norm()
    cosine = (first * second).sum() / lengths.clamp(min=torch.finfo(base.dtype).tiny)
    if cosine.abs() > COLLINEAR_COSINE or lengths == 0:
        return deltas[0].lerp(deltas[1], t)
    angle = cosine.acos()
    parts = ((1 - t) * angle).sin() * first + (t * angle).sin() * second
    return parts / angle.sin() - base
