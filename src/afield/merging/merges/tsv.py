"""TSV-M: every expert's leading singular directions, made orthogonal (Gargiulo et al., 2025).

    Δ_d ≈ U_d S_d V_dᵀ, the first k = ⌊min(m, n) / D⌋ triplets of each of D experts
    U⊥, V⊥ = polar factors of [U_1 … U_D] and [V_1 … V_D]
    merged = U⊥ diag(S_1, …, S_D) V⊥ᵀ

Of one expert alone it is that expert. Of identical experts it is one expert's own rank-k part: the
copies of a direction share it. The order of the experts is nothing.

Differs from the authors' code in nothing where that is well defined. A direction without signal
(`spectral.SIGNAL`: of low-rank, nearly equal or zero deltas) takes no part, and neither
does what is left of directions that coincide (`DIRECTION`); there, theirs takes what LAPACK makes
of rounding. Where D > min(m, n), one direction of each (theirs: none). Scaled by 1, not tuned.
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
    """Sum of the leading parts of the deltas, in directions that do not overlap.

    Parameters
    ----------
    deltas
        What each expert changed in one matrix: [experts, m, n].
    exact
        The shared directions in float64 (1.3 times the time); always so for float64 deltas.
    """
    left, values, right = shared_basis(deltas, exact=exact)
    return (left * values) @ right.mT
