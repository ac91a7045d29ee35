"""CART: the mean, and what each expert has most beyond it (Choi et al., 2025).

    mean = Σ_d Δ_d / D,   k = max(1, ⌊rank · min(m, n)⌋)
    merged = mean + strength · Σ_d (Δ_d - mean, cut to its first k singular triplets)

It needs no data. The cost is a singular value decomposition of each expert's matrix.

Known failures: with two experts, the differences from the mean are opposite and cancel, so the
result is the mean, whatever the settings; the same holds for `rank` = 1 and any experts. The best
strength depends on the number of experts and is meant to be chosen on validation data.

Differs from the authors' code (that of AdaRank, which has it as a baseline): it cuts only matrices
of attention and MLP blocks; here, all matrices. Directions without signal (`SIGNAL_FLOOR` in
`afield.merging.spectral`, relative to the longest delta) take no part. The rank of 0.08 is the
paper's, the strength of 1 is the default of the code.
"""

from typing import Annotated

from torch import Tensor

from afield.hyperparameters import Uniform
from afield.merging.scopes import scope, share
from afield.merging.spectral import full_precision, leading_triplets

__all__ = ["cart"]


@scope("matrix")
@full_precision()
def cart(
    deltas: Tensor,
    *,
    rank: Annotated[float, Uniform(0.04, 0.32)] = 0.08,
    strength: Annotated[float, Uniform(0.5, 2.5)] = 1.0,
) -> Tensor:
    """Mean of the deltas, and the leading parts of what they have beyond it."""
    count = max(1, int(share("rank", rank) * min(deltas.shape[1:])))
    exact = deltas.double()
    mean = exact.mean(dim=0)
    longest = exact.flatten(1).norm(dim=1).max()
    own = mean.new_zeros(mean.shape)
    for delta in exact:
        left, values, right = leading_triplets(delta - mean, count, scale=longest)
        own += (left * values) @ right.mT
    return (mean + strength * own).to(deltas.dtype)
