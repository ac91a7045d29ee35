"""Iso-C: the sum of the deltas with an even spectrum (Marczak et al., 2025).

    Σ_d Δ_d = U S Vᵀ,   merged = mean(S) U Vᵀ

For a single expert, the result is that expert with all its singular values replaced by their mean;
for D identical experts, it is D times that. The order of the experts does not matter.

Differs from the authors' code: directions without signal (`SIGNAL_FLOOR` in
`afield.merging.spectral`) take no part, neither in the mean nor in the result. Their code raises
rounding to the mean if the sum has low rank. The scale is 1, not tuned on validation data.
"""

from torch import Tensor

from afield.merging.scopes import scope
from afield.merging.spectral import full_precision, leading_triplets

__all__ = ["iso_c"]


@scope("matrix")
@full_precision()
def iso_c(deltas: Tensor) -> Tensor:
    """Sum of the deltas with equal singular values."""
    total = deltas.double().sum(dim=0)
    left, values, right = leading_triplets(total, min(total.shape))
    if not len(values):
        return deltas[0] * 0
    return (values.mean() * left @ right.mT).to(deltas.dtype)
