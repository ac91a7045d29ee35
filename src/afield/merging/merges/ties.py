"""TIES: keep large changes, elect a sign, average those who agree (Yadav et al., 2023).

    trim     of every expert keep the entries with |Δ| ≥ its (d - int(density · d))-th smallest
             magnitude, d the number of entries of the whole model
    elect    sign of Σ_d trimmed; where that is 0, the sign of the sum of all elected signs
    merge    mean over the trimmed entries that have the elected sign

Differs from the authors' code: where the sum of all signs is 0 as well, an entry stays 0 (there it
counts as negative). What stays as in the base counts in d, as there: with frozen parts more than
the share `density` of the others is kept. The scale is 1; the authors choose it on validation data.
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
    least = deltas.sorted_entries([max(dropped, 1) - 1]).flatten().tolist()
    majority = math.copysign(1.0, signs) if (signs := _signs(deltas, least)) else 0.0

    def merged(piece: Tensor) -> Tensor:
        trimmed = _trimmed(piece, least)
        total = torch.stack(trimmed).sum(0)
        elected = total.sign().add_(total == 0, alpha=majority)
        agreed, count = torch.zeros_like(total), torch.zeros_like(total)
        for row in trimmed:
            agreed += row.mul_(elected).clamp_(min=0)
            count += row.sign_()
        return agreed.mul_(elected).div_(count.clamp_(min=1))

    return merged


def _signs(deltas: Deltas, least: Sequence[float]) -> float:
    """Sum of the signs that the entries of the whole model elect by themselves."""
    found = 0
    for piece in deltas:
        total = torch.stack(_trimmed(piece, least)).sum(0)
        found += int((total > 0).count_nonzero()) - int((total < 0).count_nonzero())
    return found


def _trimmed(piece: Tensor, least: Sequence[float]) -> list[Tensor]:
    """Every row with 0 for what is less than its least magnitude."""
    below = [_before(bound, piece.dtype) for bound in least]
    return [F.hardshrink(row, bound) for row, bound in zip(piece, below, strict=True)]


def _before(value: float, dtype: torch.dtype) -> float:
    """The number before this one: what is greater than it is not less than the value."""
    return float(
        torch.nextafter(torch.tensor(value, dtype=dtype), torch.tensor(-math.inf, dtype=dtype))
    )
