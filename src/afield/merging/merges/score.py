"""SCORE: merge in a basis that all experts share, without their conflicts (Chaves et al., 2026).

    U⊥, V⊥ = polar factors of the experts' leading singular vectors, side by side (as in TSV)
    M_d = U⊥ᵀ Δ_d V⊥
    merged = U⊥ Σ_d trim(M_d) V⊥ᵀ

The diagonal of M_d, on which experts agree, is kept. Off-diagonal entries are kept if they are
within `tau` σ / D of the mean μ; μ and σ (with n - 1) are over all entries of M_d with its diagonal
set to zero.

`keep` selects parts: diagonal, off_diagonal (trimmed), or full, which is the sum of the deltas
within the basis without any trimming. `center` zero replaces μ by 0, also in σ: the result then no
longer depends on the signs of the singular vectors.

For a single expert, the result is that expert (off_diagonal: zero). For identical experts, the
diagonal is the rank-k part of one expert, k = ⌊min(m, n) / D⌋, and full is D times that. Trimmed is
that rank-k part too, except for directions so weak that their off-diagonal twins are within the
threshold: these count D times, and change the result by a share of at most about 2 / √k. The order
of the experts does not matter.

Differs from the paper: its text divides the threshold by D for medical images and not for natural
ones, its authors' code does the opposite; `divide_by_domains` follows the code for natural images,
on every dataset. On the medical datasets (`fed_isic`, `retina_domains`) this equals the paper's
text; `divide_by_domains=false` is what the authors' code does there.
The paper takes μ and σ over the off-diagonal entries only, does not trim off_diagonal, and has <
instead of ≤. Here all of this is as in the code.

Differs from the authors' code: signs are fixed (the largest entry of each left vector is positive),
where theirs, and with them μ, are LAPACK's choice (1-2 % of the result at 768 × 768). The basis is
not filled up with further columns if D does not divide min(m, n). A direction without signal
(`SIGNAL_FLOOR` in `afield.merging.spectral`) takes no part, nor does what is left of directions
that coincide (`DIRECTION_FLOOR`). Full does not add 1 to every entry.
"""

from typing import Annotated, Literal

import torch
from torch import Tensor

from afield.errors import MergeError
from afield.hyperparameters import Uniform, Variant
from afield.merging.scopes import scope
from afield.merging.spectral import full_precision, shared_basis

__all__ = ["score"]

Keep = Literal["trimmed", "diagonal", "off_diagonal", "full"]
Center = Literal["mean", "zero"]


@scope("matrix")
@full_precision()
def score(
    deltas: Tensor,
    *,
    keep: Annotated[Keep, Variant(("trimmed", "diagonal", "off_diagonal", "full"))] = "trimmed",
    tau: Annotated[float, Uniform(0.5, 3.0)] = 1.96,
    divide_by_domains: Annotated[bool, Variant((True, False))] = True,
    center: Annotated[Center, Variant(("mean", "zero"))] = "mean",
    exact: Annotated[bool, Variant((False, True))] = False,
) -> Tensor:
    """Sum of the deltas in a shared basis, without their conflicts.

    Parameters
    ----------
    deltas
        The experts' changes to one matrix: [experts, m, n].
    keep
        Which entries of a delta in the shared basis to keep.
    tau
        How many standard deviations an off-diagonal entry may be away from the center.
    divide_by_domains
        Whether to divide `tau` by the number of experts.
    center
        The center that entries are compared with: their mean, or zero.
    exact
        Compute the basis in float64, which takes 1.3 times as long; always so for float64 deltas.
    """
    if tau < 0:
        raise MergeError(f"tau={tau:g}: must be at least 0")
    long, values, short = shared_basis(deltas, exact=exact)
    wide = deltas.shape[1] < deltas.shape[2]
    if wide:
        # The transposed merge is the same, and products with the long side first are faster.
        deltas, long, short = deltas.mT, short, long
    width = tau / len(deltas) if divide_by_domains else tau
    total = long.new_zeros(len(values), len(values))
    for delta in deltas:
        total += keep_entries(long.mT @ delta @ short, keep=keep, width=width, center=center)
    merged = long @ (total @ short.mT)
    return merged.mT if wide else merged


def keep_entries(square: Tensor, *, keep: Keep, width: float, center: Center = "mean") -> Tensor:
    """Keep the selected entries of a delta in the shared basis; `width` is the threshold in σ."""
    if keep == "full":
        return square
    diagonal = square.diagonal() * (keep != "off_diagonal")
    if keep == "diagonal" or len(square) == 1:
        return torch.diag(diagonal)
    off = square.clone().fill_diagonal_(0.0)
    off *= agreement_mask(off, width=width, center=center)
    off.diagonal().copy_(diagonal)
    return off


def agreement_mask(off: Tensor, *, width: float, center: Center = "mean") -> Tensor:
    """Whether each entry of a matrix with a zero diagonal is within the threshold."""
    n, zero = off.numel(), torch.zeros((), dtype=torch.float64, device=off.device)
    middle = off.mean(dtype=torch.float64) if center == "mean" else zero
    squares = torch.linalg.vector_norm(off, dtype=torch.float64) ** 2
    threshold = width * ((squares - n * middle**2) / (n - 1)).clamp(min=0).sqrt()
    middle, threshold = middle.to(off.dtype), threshold.to(off.dtype)
    return (off - middle).abs() <= threshold
