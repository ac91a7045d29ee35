"""Model breadcrumbs: drop the smallest changes and the outliers (Davari and Belilovsky, 2024).

    merged = Σ_d m_d Δ_d,   m_d = 0 for the int(low · n) smallest and the int(high · n) largest
                            magnitudes of a tensor of n entries, else 1

Entries equal to the last kept entry are kept too.

The usual scale is 0.3, as in the paper; that value is unverified, like the defaults of `low` and
`high`, which follow the paper's 85 % and 99.3 %.

Differs from the paper: `afield.merge` has the scale 1 unless another is given.
"""

from typing import Annotated

from torch import Tensor

from afield.hyperparameters import LogUniform, Uniform
from afield.merging.order_statistics import sorted_entries
from afield.merging.scopes import scope, share

__all__ = ["breadcrumbs"]


@scope("tensor", usual_scale=0.3)
def breadcrumbs(
    deltas: Tensor,
    *,
    low: Annotated[float, Uniform(0.5, 0.95)] = 0.85,
    high: Annotated[float, LogUniform(0.001, 0.1)] = 0.007,
) -> Tensor:
    """Sum over the experts; `low` and `high` are the shares of entries dropped at either end."""
    rows = deltas.flatten(1)
    magnitudes, n = rows.abs(), rows.shape[1]
    first, last = int(share("low", low) * n), n - 1 - int(share("high", high) * n)
    if last < first:
        return deltas[0] * 0
    ends = sorted_entries([magnitudes], [first, last])
    kept = (magnitudes >= ends[:, :1]) & (magnitudes <= ends[:, 1:])
    return (rows * kept).sum(0).view(deltas.shape[1:])
