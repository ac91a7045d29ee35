"""MagMax: the largest change of every entry (Marczak et al., 2024).

    merged = Δ_d of the d with the largest |Δ_d|, entry by entry; among equals, the later expert

The order of the experts matters only where two changes are exactly opposite.

The usual scale is 0.5, as in the paper; `afield.merge` has the scale 1 unless another is given.

Differs from the paper: there the experts are fine-tuned one after the other.
"""

import torch
from torch import Tensor

from afield.merging.scopes import scope

__all__ = ["magmax"]


@scope("entry", usual_scale=0.5)
def magmax(deltas: Tensor) -> Tensor:
    """The entry of largest magnitude over the experts."""
    largest = deltas[0]
    for delta in deltas[1:]:
        largest = torch.where(delta.abs() >= largest.abs(), delta, largest)
    return largest
