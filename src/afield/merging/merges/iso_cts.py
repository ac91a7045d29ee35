"""Iso-CTS: an even spectrum over common and specific directions (Marczak et al., 2025).

    r = min(m, n);   s = round((r - int(common · r)) / D) D;   c = r - s
    U_c S_c V_cᵀ = the first c singular triplets of Σ_d Δ_d
    U_d S_d V_dᵀ = the first s / D singular triplets of Δ_d - U_c U_cᵀ Δ_d
    U⊥, V⊥ = polar factors of [U_1 … U_D U_c] and [V_1 … V_D V_c]
    merged = mean of all S · U⊥ V⊥ᵀ

For a single expert, it is Iso-C. The order of the experts does not matter.

Differs from the authors' code in nothing where their result is well defined. Directions without
signal (`SIGNAL_FLOOR` in `afield.merging.spectral`, relative to the largest singular value of the
sum as well) take no part, neither in the mean nor in the result; nor does what is left of
directions that coincide. The scale is 1, not tuned on validation data.
"""

from typing import Annotated

from torch import Tensor

from afield.hyperparameters import Uniform
from afield.merging.scopes import scope, share
from afield.merging.spectral import (
    Triplets,
    concatenate_triplets,
    full_precision,
    leading_triplets,
    polar_factor,
)

__all__ = ["iso_cts"]


@scope("matrix")
@full_precision()
def iso_cts(deltas: Tensor, *, common: Annotated[float, Uniform(0.5, 0.95)] = 0.8) -> Tensor:
    """Sum of common and specific parts with equal singular values."""
    rank = min(deltas.shape[1:])
    specific_rank = rank - int(share("common", common) * rank)
    count = min(round(specific_rank / len(deltas)), rank // len(deltas))
    shared = leading_triplets(deltas.double().sum(dim=0), rank - count * len(deltas))
    specific = [_specific(delta.double(), shared, count) for delta in deltas] if count else []
    left, values, right = concatenate_triplets([*specific, shared])
    if not len(values):
        return deltas[0] * 0
    return (values.mean() * polar_factor(left) @ polar_factor(right).mT).to(deltas.dtype)


def _specific(delta: Tensor, shared: Triplets, count: int) -> Triplets:
    """The leading directions of an expert's delta outside the shared directions."""
    rest = delta - shared.left @ (shared.left.mT @ delta)
    return leading_triplets(rest, count, scale=shared.values[:1].sum())
