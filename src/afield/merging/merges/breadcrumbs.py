"""Model breadcrumbs: drop the smallest changes and the outliers (Davari and Belilovsky, 2024).

    merged = Σ_d m_d Δ_d,   m_d = 0 for the int(low · n) smallest and the int(high · n) largest
                            magnitudes of a tensor of n entries, else 1

Entries equal to the last kept entry are kept too.

The usual scale is 0.3, as in the paper; that value is unverified, like the defaults of `low` and
`high`, which follow the paper's 85 % and 99.3 %.

Differs from the paper: `afield.merge` has the scale 1 unless another is given.
"""

from collections.abc import Callable
from typing import Annotated

from torch import Tensor

from afield.hyperparameters import LogUniform, Uniform
from afield.merging.order_statistics import TensorPieces, sorted_entries
from afield.merging.scopes import scope, share

__all__ = ["breadcrumbs"]


def _in_pieces(
    pieces: TensorPieces, *, name: str, low: float, high: float
) -> Callable[[Tensor], Tensor]:
    """The bounds from several passes over the tensor, then a piece at a time."""
    del name
    first, last = _ranks(pieces.size, low, high)
    if last < first:
        return lambda piece: piece[0] * 0
    ends = pieces.deltas.sorted_entries([first, last])
    return lambda piece: _sum_within(piece, ends)


@scope("tensor", usual_scale=0.3, in_pieces=_in_pieces)
def breadcrumbs(
    deltas: Tensor,
    *,
    low: Annotated[float, Uniform(0.5, 0.95)] = 0.85,
    high: Annotated[float, LogUniform(0.001, 0.1)] = 0.007,
) -> Tensor:
    """Sum over the experts; `low` and `high` are the shares of entries dropped at either end."""
    rows = deltas.flatten(1)
    first, last = _ranks(rows.shape[1], low, high)
    if last < first:
        return deltas[0] * 0
    ends = sorted_entries([rows.abs()], [first, last])
    return _sum_within(rows, ends).view(deltas.shape[1:])


def _ranks(n: int, low: float, high: float) -> tuple[int, int]:
    """Ranks of the smallest and the largest magnitude that are kept."""
    return int(share("low", low) * n), n - 1 - int(share("high", high) * n)


def _sum_within(rows: Tensor, ends: Tensor) -> Tensor:
    magnitudes = rows.abs()
    kept = (magnitudes >= ends[:, :1]) & (magnitudes <= ends[:, 1:])
    return (rows * kept).sum(0)
