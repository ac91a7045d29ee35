"""Model Stock: the mean, shortened by the angle between the experts (Jang et al., 2024).

    merged = t · mean_d Δ_d,   t = D cos θ / (1 + (D - 1) cos θ),   tensor by tensor

cos θ is the mean cosine between the deltas of two experts: t is 1 where they agree, and 0 where
they are orthogonal.

Differs from the paper: a cosine below 0, which the paper does not consider, counts as 0; it would
lead away from the mean. A single expert has t = 1. The paper merges repeatedly during training;
this merges once, at the end.

The cosines of a tensor of more than 16.7 million entries are summed in float64, in pieces.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from afield.merging.order_statistics import TensorPieces
from afield.merging.scopes import scope

__all__ = ["model_stock"]


def _in_pieces(pieces: TensorPieces, *, name: str) -> Callable[[Tensor], Tensor]:
    """The angle from the products of all pairs of experts, summed over pieces in float64."""
    del name
    count = pieces.experts
    if count == 1:
        return lambda piece: piece[0]
    products = torch.zeros(count, count, dtype=torch.float64)
    for deltas in pieces.deltas:
        rows = deltas.double()
        products += (rows @ rows.T).cpu()
    norms = products.diagonal().sqrt()
    norms = norms.where(norms > 0, norms.new_ones(()))
    cosines = products / norms / norms[:, None]
    cosine = ((cosines.sum() - cosines.diagonal().sum()) / (count * (count - 1))).clamp(0.0, 1.0)
    factor = float(count * cosine / (1 + (count - 1) * cosine))
    return lambda piece: factor * piece.mean(0)


@scope("tensor", in_pieces=_in_pieces)
def model_stock(deltas: Tensor) -> Tensor:
    """Mean over the experts, shortened the more they disagree."""
    rows, count = deltas.flatten(1), len(deltas)
    if count == 1:
        return deltas[0]
    # The sum of the cosines over pairs is ‖Σ u‖² less the products of each vector with itself.
    norms = rows.norm(dim=1)
    units = rows / norms.where(norms > 0, norms.new_ones(())).unsqueeze(1)
    pairs = units.sum(0).square().sum() - units.square().sum()
    cosine = (pairs / (count * (count - 1))).clamp(0.0, 1.0)
    return count * cosine / (1 + (count - 1) * cosine) * deltas.mean(0)
