"""TIES: trim small changes, elect a sign, average the entries that agree (Yadav et al., 2023).

    trim     of every expert keep the entries with |Δ| ≥ its (d - int(density · d))-th smallest
             magnitude, d the number of entries of the whole model
    elect    sign of Σ_d trimmed; where that is 0, the sign of the sum of all elected signs
    merge    mean over the trimmed entries that have the elected sign

Differs from the authors' code: if the sum of all signs is 0 as well, an entry stays 0 (there it
counts as negative). As there, d includes entries that are unchanged from the base: if parts are
frozen, more than the share `density` of the other entries is kept. The scale is 1; the authors
choose it on validation data.
"""

import math
from collections.abc import Callable, Sequence
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from afield.hyperparameters import Uniform
from afield.merging.order_statistics import Deltas
from afield.merging.scopes import scope, share

__all__ = ["ties"]


@scope("model")
def ties(
    deltas: Deltas, *, density: Annotated[float, Uniform(0.05, 1.0)] = 0.2
) -> Callable[[Tensor], Tensor]:
    """Trim, elect, merge; `density` is the share of entries that an expert keeps."""
    dropped = deltas.size - int(share("density", density) * deltas.size)
    bounds = deltas.sorted_entries([max(dropped, 1) - 1]).flatten().tolist()
    majority = math.copysign(1.0, signs) if (signs := _sum_of_signs(deltas, bounds)) else 0.0

    def merged(piece: Tensor) -> Tensor:
        trimmed = _trim(piece, bounds)
        total = torch.stack(trimmed).sum(0)
        elected = total.sign().add_(total == 0, alpha=majority)
        agreed, count = torch.zeros_like(total), torch.zeros_like(total)
        for row in trimmed:
            agreed += row.mul_(elected).clamp_(min=0)
            count += row.sign_()
        return agreed.mul_(elected).div_(count.clamp_(min=1))

    return merged


def _sum_of_signs(deltas: Deltas, bounds: Sequence[float]) -> float:
    """Sum of the elected signs over all entries of the model."""
    signs = 0
    for piece in deltas:
        total = torch.stack(_trim(piece, bounds)).sum(0)
        signs += int((total > 0).count_nonzero()) - int((total < 0).count_nonzero())
    return signs


def _trim(piece: Tensor, bounds: Sequence[float]) -> list[Tensor]:
    """Set the entries of each row to 0 whose magnitude is below the row's bound."""
    # hardshrink keeps what is strictly greater than its bound.
    below = [_next_smaller(bound, piece.dtype) for bound in bounds]
    return [F.hardshrink(row, bound) for row, bound in zip(piece, below, strict=True)]


def _next_smaller(value: float, dtype: torch.dtype) -> float:
    """The largest number of this type that is smaller than the value."""
    return float(
        torch.nextafter(torch.tensor(value, dtype=dtype), torch.tensor(-math.inf, dtype=dtype))
    )
