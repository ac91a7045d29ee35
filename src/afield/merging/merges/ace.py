"""ACE-Merging: a least-squares merge with covariances taken from the deltas (Xu et al., 2026).

    W_d = Δ_d less the mean of its rows,   S_d = W_dᵀW_d,   h = var(log ‖Δ_d‖²) / mean(log ‖Δ_d‖²)²
    if h > heterogeneity:  S_d /= tr S_d and ridge_d = ridge / tr S_d;   else ridge_d = ridge
    C_d = S_d + ridge_d · I,   prior = 1 · (mean of the rows of Σ_d S_d)
    merged = (Σ_d W_d C_d) (Σ_d C_d + prior)⁻¹

The delta of a linear layer is a sum of outer products with its inputs, so its rows stand for the
inputs and no data are needed: this is `regmean` with estimated Gram matrices. If the experts'
norms are heterogeneous, the prior is divided by the mean of ‖Δ_d‖², and a part is added:

    F = merged + Σ_d Δ_d (S_d - Σ_d C_d / D) = U S Vᵀ,   k = max(1, ⌊directions · min(m, n)⌋)
    merged += mean(S_1 … S_k) U_k V_kᵀ

It costs an inverse of an n × n matrix, and an SVD for heterogeneous experts.

Known failures: `ridge` and h are not relative to the size of the deltas. For small deltas the
ridge outweighs the covariances, and the result is near the mean; and h is huge where ‖Δ_d‖² is
about 1, so experts of almost equal norms count as heterogeneous there. The mean of the rows, a
change that all outputs share, is lost.

Differs from the authors' code in nothing where their result is well defined. It is computed in
float64. Experts that did not change a matrix are left out: their covariance would be divided by
nothing. Directions without signal (`SIGNAL_FLOOR` in `afield.merging.spectral`) take no part.
"""

from typing import Annotated

import torch
from torch import Tensor

from afield.errors import MergeError
from afield.hyperparameters import LogUniform
from afield.merging.scopes import scope, share
from afield.merging.spectral import full_precision, leading_triplets

__all__ = ["ace"]

# As in the authors' code; it keeps divisors above 0.
TINY = 1e-12


@scope("matrix")
@full_precision()
def ace(
    deltas: Tensor,
    *,
    ridge: Annotated[float, LogUniform(1e-3, 1e-1)] = 1e-2,
    heterogeneity: float = 0.3,
    directions: float = 0.3,
) -> Tensor:
    """Least-squares mean over the experts, with covariances estimated from their deltas."""
    if not ridge > 0:
        raise MergeError(f"ridge={ridge}: must be above 0")
    share("directions", directions)
    exact = deltas.double()
    squares = exact.square().sum(dim=(1, 2))
    exact, squares = exact[squares > 0], squares[squares > 0]
    if not len(exact):
        return deltas[0] * 0
    is_heterogeneous = _heterogeneity(squares) > heterogeneity
    centered = exact - exact.mean(dim=1, keepdim=True)
    covariances = centered.mT @ centered
    ridges = torch.full_like(squares, ridge)
    if is_heterogeneous:
        traces = covariances.diagonal(dim1=1, dim2=2).sum(dim=1) + TINY
        covariances, ridges = covariances / traces[:, None, None], ridges / traces
    prior = covariances.sum(dim=0).mean(dim=0)
    if is_heterogeneous:
        prior = prior / (squares.mean() + TINY)
    eye = torch.eye(exact.shape[2], dtype=exact.dtype, device=exact.device)
    ridged = covariances + ridges[:, None, None] * eye
    left = (centered @ ridged).sum(dim=0)
    merged = torch.linalg.solve(ridged.sum(dim=0) + prior, left, left=False)
    if is_heterogeneous:
        residual = (exact @ (covariances - ridged.mean(dim=0))).sum(dim=0)
        merged = merged + _even_part(merged + residual, directions)
    return merged.to(deltas.dtype)


def _heterogeneity(squares: Tensor) -> float:
    """The variance of the logarithms over the square of their mean; 0 for a single expert."""
    if len(squares) == 1:
        return 0.0
    logs = (squares + TINY).log()
    return float(logs.var() / (logs.mean().square() + TINY))


def _even_part(matrix: Tensor, directions: float) -> Tensor:
    """The leading directions of a matrix, each with the mean of their singular values."""
    count = max(1, int(directions * min(matrix.shape)))
    left, values, right = leading_triplets(matrix, count)
    return values.mean() * left @ right.mT if len(values) else matrix * 0
