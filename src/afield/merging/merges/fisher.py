"""Fisher merging: weight each entry by its expert's certainty (Matena and Raffel, 2022).

    merged = Σ_d F_d Δ_d / Σ_d F_d,   F_d at least `floor`

`statistics` are the experts' diagonal Fisher matrices: the mean over samples of the squared
gradient of the log-likelihood, in one mapping or file per expert, with the names and shapes of the
weights. Where the Fisher information of all experts is at the floor, the result is the mean.

Differs from the paper: experts have equal weights; the floor is as in the authors' code
(unverified).
"""

from typing import Annotated

from torch import Tensor

from afield.errors import MergeError
from afield.hyperparameters import LogUniform
from afield.merging.scopes import scope

__all__ = ["fisher"]


@scope("entry")
def fisher(
    deltas: Tensor, *, statistics: Tensor, floor: Annotated[float, LogUniform(1e-10, 1e-2)] = 1e-6
) -> Tensor:
    """Mean over the experts, weighted by their Fisher information."""
    if not statistics.min() >= 0 or not statistics.sum().isfinite():
        raise MergeError("Fisher information must be finite and at least 0: a mean of squares")
    if floor <= 0:
        raise MergeError(f"floor={floor}: must be above 0")
    weights = statistics.clamp(min=floor)
    return (weights * deltas).sum(0) / weights.sum(0)
