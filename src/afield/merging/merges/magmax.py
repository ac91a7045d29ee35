"""MagMax: of every entry, the largest change (Marczak et al., 2024).

    merged = Δ_d of the d with the largest |Δ_d|, entry by entry; of equals the later expert

Differs from the paper: the scale is 1, the paper's 0.5; and there the experts are fine-tuned one
after the other. The order of the experts matters only where two changes are exactly opposite.
"""

import torch
from torch import Tensor

from afield.merging.scopes import scope

__all__ = ["magmax"]


@scope("entry")
def magmax(deltas: Tensor) -> Tensor:
    """Largest magnitude over the experts."""
    found = deltas[0]
    for delta in deltas[1:]:
        found = torch.where(delta.abs() >= found.abs(), delta, found)
    return found
