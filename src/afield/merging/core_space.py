"""Core Space: low-rank changes merged in the space that they span (Panariello et al., 2025).

    Δ_d = L_d R_d,   U, V = left singular vectors of [L_1 … L_D] and of [R_1ᵀ … R_Dᵀ]
    M_d = Uᵀ Δ_d V, so Δ_d = U M_d Vᵀ without loss, for any ranks
    merged = U · merge(M_1, …, M_D) · Vᵀ

The cores M_d have as many rows and columns as the experts' ranks together, so neither memory nor
time depends much on the size of the matrices. A merge that gives the same result in every
orthonormal basis (`rotates`) gives here what it gives for the full matrices. Others, such as
`ties`, give something else here, which is what the paper proposes.

Differs from the paper: cores are filled up with zeros to D times the largest rank, so that merges
that give every expert an equal share of the rank cut nothing off.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from afield.merging.scopes import LowRankDelta
from afield.merging.spectral import leading_triplets

# Merges that do not depend on the basis; `score` only if its threshold is centered at zero, because
# a mean of entries depends on the signs of the basis.
ROTATING = ("average", "task_arithmetic", "model_stock", "tsv", "iso_c", "score")


def rotates(how: str, params: Mapping[str, Any]) -> bool:
    """Whether a merge of U Δ_d Vᵀ is U · merge of Δ_d · Vᵀ for orthonormal columns U and V."""
    return how in ROTATING and (how != "score" or params["center"] == "zero")


class Cores(NamedTuple):
    """Changes in the space that they span: left [m, p], cores [D, p, q] and right [n, q]."""

    left: Tensor
    cores: Tensor
    right: Tensor

    def expand(self, merged: Tensor) -> LowRankDelta:
        """A merged core [p, q] as a change of the matrix."""
        return LowRankDelta(self.left @ merged.to(self.left.dtype), self.right.mT)


def span(deltas: Sequence[LowRankDelta], *, dtype: torch.dtype, device: str = "cpu") -> Cores:
    """The changes of one matrix in the space that they span."""
    exact = [(delta.left.to(device).double(), delta.right.to(device).double()) for delta in deltas]
    left = _basis(torch.cat([left for left, _ in exact], dim=1))
    right = _basis(torch.cat([right.mT for _, right in exact], dim=1))
    most = len(deltas) * max(delta.rank for delta in deltas)
    sizes = [min(most, len(basis)) for basis in (left, right)]
    cores = left.new_zeros(len(deltas), *sizes)
    for core, (outer, inner) in zip(cores, exact, strict=True):
        core[: left.shape[1], : right.shape[1]] = (left.mT @ outer) @ (inner @ right)
    left, right = (_pad(basis, size) for basis, size in zip((left, right), sizes, strict=True))
    return Cores(left.to(dtype), cores.to(dtype), right.to(dtype))


def _basis(columns: Tensor) -> Tensor:
    """Orthonormal columns that span these, the most important first."""
    return torch.linalg.svd(columns, full_matrices=False).U


def _pad(basis: Tensor, size: int) -> Tensor:
    """Columns of zeros up to this number; the cores are 0 there."""
    return torch.nn.functional.pad(basis, (0, size - basis.shape[1]))


def truncate(delta: LowRankDelta, rank: int) -> tuple[LowRankDelta, float, float]:
    """The best approximation of this rank, the square of its norm, and that of the whole change.

    Both factors have the same norm in every direction, as those of a trained adapter roughly have.
    """
    left, triangle = torch.linalg.qr(delta.left.double())
    right, other = torch.linalg.qr(delta.right.double().mT)
    core = triangle @ other.mT
    outer, values, inner = leading_triplets(core, min(rank, *core.shape))
    roots = values.sqrt()
    factors = left @ (outer * roots), (right @ (inner * roots)).mT
    kept = LowRankDelta(*(factor.to(delta.left.dtype) for factor in factors))
    return kept, float(values.square().sum()), float(core.square().sum())


def factorize(matrix: Tensor, rank: int) -> tuple[LowRankDelta, float, float]:
    """The best approximation of a matrix by factors of this rank, as `truncate`."""
    left, values, right = leading_triplets(matrix, min(rank, *matrix.shape))
    roots = values.sqrt()
    dtype = matrix.dtype
    kept = LowRankDelta((left * roots).to(dtype), (right * roots).mT.to(dtype))
    return kept, float(values.square().sum()), float(matrix.double().square().sum())
