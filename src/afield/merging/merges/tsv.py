"""TSV-M: every expert's leading singular directions, made orthogonal (Gargiulo et al., 2025).

    Δ_d ≈ U_d S_d V_dᵀ, the first k = ⌊min(m, n) / D⌋ triplets of each of D experts
    U⊥, V⊥ = polar factors of [U_1 … U_D] and [V_1 … V_D]
    merged = U⊥ diag(S_1, …, S_D) V⊥ᵀ

For a single expert, the result is that expert. For identical experts, it is the rank-k part of one
expert: the copies of a direction share it. The order of the experts does not matter.

Differs from the authors' code in nothing where their result is well defined. A direction without
signal (`SIGNAL_FLOOR` in `afield.merging.spectral`; of low-rank, nearly equal or zero deltas) takes
no part, nor does what is left of directions that coincide (`DIRECTION_FLOOR`); in these cases,
their code takes what LAPACK makes of rounding. If D > min(m, n), one direction of each expert is
kept (theirs: none). The scale is 1, not tuned.
"""

from typing import Annotated

from torch import Tensor

from afield.hyperparameters import Variant
from afield.merging.scopes import scope
from afield.merging.spectral import full_precision, shared_basis

__all__ = ["tsv"]


@scope("matrix")
@full_precision()
def tsv(deltas: Tensor, *, exact: Annotated[bool, Variant((False, True))] = False) -> Tensor:
    """Sum of the leading parts of the deltas, in orthogonal directions.

    Parameters
    ----------
    deltas
        The experts' changes to one matrix: [experts, m, n].
    exact
        Compute the directions in float64, which takes 1.3 times as long; always so for float64
        deltas.
    """
    left, values, right = shared_basis(deltas, exact=exact)
    return (left * values) @ right.mT
