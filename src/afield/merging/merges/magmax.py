"""MagMax: the largest change of every entry (Marczak et al., 2024).

    merged = Δ_d of the d with the largest |Δ_d|, entry by entry; among equals, the later expert

The order of the experts matters only where two changes are exactly opposite.

Differs from the paper: the scale is 1, where the paper has 0.5; and in the paper the experts are
fine-tuned one after the other.
"""

import torch
from torch import Tensor

from afield.merging.scopes import scope

__all__ = ["magmax"]


@scope("entry")
def magmax(deltas: Tensor) -> Tensor:
    """The entry of largest magnitude over the experts."""
    largest = deltas[0]
    for delta in deltas[1:]:
        largest = torch.where(delta.abs() >= largest.abs(), delta, largest)
    return largest
