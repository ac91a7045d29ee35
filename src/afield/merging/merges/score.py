"""SCORE: merge in a basis that all experts share, without their conflicts (Chaves et al., 2026).

    U⊥, V⊥ = polar factors of the experts' leading singular vectors, side by side (as in TSV)
    M_d = U⊥ᵀ Δ_d V⊥
    merged = U⊥ Σ_d trim(M_d) V⊥ᵀ

The diagonal of M_d, on which experts agree, is kept. Entries beside it are kept where they are no
further from the mean μ than `tau` σ / D; μ and σ (n - 1) are over the whole of M_d with a diagonal
of zeros. `keep` leaves parts out: diagonal, off_diagonal (trimmed), or full, without any trimming,
which is the sum of the deltas within the basis. `center` zero puts 0 in the place of μ, in σ too:
the result then no longer depends on the signs of singular vectors.

Of one expert alone it is that expert (off_diagonal: zero). Of identical experts the diagonal is
one expert's own rank-k part, k = ⌊min(m, n) / D⌋, and full is D times it. Trimmed is that rank-k
part too, but for directions so weak that their twins beside the diagonal are within the threshold:
they come D times, and change it by a share of at most about 2 / √k. The order of the experts is
nothing.

Differs from the paper: its text divides the threshold by D for medical images and not for natural
ones, its authors' code the other way round; `divide_by_domains` follows the code for natural ones.
It takes μ and σ over the entries beside the diagonal only, does not trim off_diagonal, and has <
for ≤. All as the code has it here.

Differs from the authors' code: signs are fixed (the largest entry of each left vector is positive),
where theirs, and with them μ, are LAPACK's choice (1-2 % of the result at 768 × 768). The basis has
no columns to fill it up where D does not divide min(m, n). A direction without signal (`SIGNAL` in
`afield.merging.spectral`) takes no part, and neither does what is left of directions that coincide
(`DIRECTION`). Full does not add 1 to every entry.
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
        What each expert changed in one matrix: [experts, m, n].
    keep
        What to keep of a delta in the shared basis.
    tau
        How many standard deviations an entry beside the diagonal may be away.
    divide_by_domains
        Whether so many are divided by the number of experts.
    center
        What it may be away from.
    exact
        The basis in float64 (1.3 times the time); always so for float64 deltas.
    """
    if tau < 0:
        raise MergeError(f"score.tau={tau:g}: must not be below 0")
    long, values, short = shared_basis(deltas, exact=exact)
    wide = deltas.shape[1] < deltas.shape[2]
    if wide:
        # The other way round is the same, and products with the long side first are quicker.
        deltas, long, short = deltas.mT, short, long
    width = tau / len(deltas) if divide_by_domains else tau
    total = long.new_zeros(len(values), len(values))
    for delta in deltas:
        total += keep_entries(long.mT @ delta @ short, keep=keep, width=width, center=center)
    merged = long @ (total @ short.mT)
    return merged.mT if wide else merged


def keep_entries(square: Tensor, *, keep: Keep, width: float, center: Center = "mean") -> Tensor:
    """What is kept of a delta in the shared basis, for a threshold in standard deviations."""
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
    """Where entries beside a diagonal of zeros are within the threshold."""
    n, zero = off.numel(), torch.zeros((), dtype=torch.float64, device=off.device)
    middle = off.mean(dtype=torch.float64) if center == "mean" else zero
    squares = torch.linalg.vector_norm(off, dtype=torch.float64) ** 2
    threshold = width * ((squares - n * middle**2) / (n - 1)).clamp(min=0).sqrt()
    middle, threshold = middle.to(off.dtype), threshold.to(off.dtype)
    return (off - middle).abs() <= threshold
