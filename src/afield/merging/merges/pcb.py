"""PCB: entries compete within their expert and between experts (Du et al., 2024).

    a      |Δ_i| of expert i, clipped to its sorted entries int(.01 d) and int(.99 d - 1)
    ν      a, scaled to 0 … 1 over the whole model;  N = sign(Δ) ν;  Δ̂ = sign(Δ) a
    β      exp(D ν²) · Σ_j tanh(N_i N_j), clipped below at its sorted entry int((1 - ratio) d)
    w      β, scaled to 0 … 1 over the whole model
    merged Σ_i w_i Δ̂_i / Σ_i w_i

d is the number of entries of the whole model, D the number of experts.

The usual scale is 1.2, as in the authors' code; `afield.merge` has the scale 1 unless another is
given.

Differs from the authors' code (their pcb_ES), which can also search the scale: a row whose entries
are all equal gets ν = 0 or w = 0, there NaN. exp(D ν²) is computed as
exp(D (ν² - 1)): the factor cancels in w, and many experts do not overflow.

Differs from the paper: it writes softmaxes (unverified), the code has none.
"""

from collections.abc import Callable
from typing import Annotated

import torch
from torch import Tensor

from afield.hyperparameters import Uniform
from afield.merging.order_statistics import Deltas
from afield.merging.scopes import scope, share

__all__ = ["pcb"]


@scope("model", usual_scale=1.2)
def pcb(
    deltas: Deltas, *, ratio: Annotated[float, Uniform(0.01, 0.5)] = 0.05
) -> Callable[[Tensor], Tensor]:
    """Weighted mean of the deltas; `ratio` is the share of entries with a nonzero weight."""
    d = deltas.size
    low, high = int(0.01 * d), max(int(0.01 * d), int(0.99 * d - 1))
    ends = deltas.sorted_entries([low, high])

    def balance(piece: Tensor) -> Tensor:
        strength = _scale_to_unit(piece.abs(), ends)
        signed = piece.sign().mul_(strength)
        between = torch.zeros_like(signed)
        for other in signed:
            between += (signed * other).tanh_()
        return strength.square_().sub_(1).mul_(len(piece)).exp_().mul_(between)

    kept = min(int((1 - share("ratio", ratio)) * d), d - 1)
    bounds = deltas.sorted_entries([kept, d - 1], of=balance)

    def merged(piece: Tensor) -> Tensor:
        weights = _scale_to_unit(balance(piece), bounds)
        total = weights.sum(0).clamp_(min=1e-12)
        clipped = piece.abs().clamp(ends[:, :1], ends[:, 1:]).mul_(piece.sign())
        return weights.mul_(clipped).sum(0).div_(total)

    return merged


def _scale_to_unit(values: Tensor, ends: Tensor) -> Tensor:
    """Clip each row to its two ends, and scale it to the range from 0 to 1."""
    low, high = ends[:, :1], ends[:, 1:]
    span = high - low
    return (
        values.clamp(low, high).sub_(low).div_(torch.where(span > 0, span, torch.ones_like(span)))
    )
