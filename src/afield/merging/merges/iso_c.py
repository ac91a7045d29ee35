"""Iso-C: the sum of the deltas with an even spectrum (Marczak et al., 2025).

    Σ_d Δ_d = U S Vᵀ,   merged = mean(S) U Vᵀ

Of one expert alone, and of identical ones up to the factor D, it is the expert with all its
singular values replaced by their mean. The order of the experts is nothing.

Differs from the authors' code: directions without signal (`spectral.SIGNAL`) take no
part, neither in the mean nor in the result. Theirs raises rounding to the mean where the sum is of
low rank. Scaled by 1, not tuned on validation data.
"""

from torch import Tensor

from afield.merging.scopes import scope
from afield.merging.spectral import full_precision, leading_triplets

__all__ = ["iso_c"]


@scope("matrix")
@full_precision()
def iso_c(deltas: Tensor) -> Tensor:
    """Sum of the deltas, all of whose directions weigh the same."""
    total = deltas.double().sum(dim=0)
    left, values, right = leading_triplets(total, min(total.shape))
    if not len(values):
        return deltas[0] * 0
    return (values.mean() * left @ right.mT).to(deltas.dtype)
