"""RegMean: what the experts' linear layers would answer, in the least squares (Jin et al., 2023).

    merged = (Σ_d Δ_d G_d) (Σ_d G_d)⁻¹,   G_d = Σ x xᵀ over the layer's inputs x,
                                          its off-diagonal entries times `off_diagonal`

`statistics` are these Gram matrices, one mapping or file an expert: under the name of a weight
[m, n], as torch's linear layers have it, a matrix [n, n]. Weights without one are averaged.
Differs from the paper: computed in float64; and an input that was 0 in all samples, for which every
weight is as good, gets the mean.
"""

from typing import Annotated

import torch
from torch import Tensor

from afield.errors import MergeError
from afield.hyperparameters import Uniform
from afield.merging.scopes import scope, share

__all__ = ["regmean"]


@scope("matrix")
def regmean(
    deltas: Tensor,
    *,
    statistics: Tensor,
    off_diagonal: Annotated[float, Uniform(0.1, 1.0)] = 0.9,
) -> Tensor:
    """Least-squares mean over the experts."""
    n = deltas.shape[-1]
    if statistics.shape[1:] != (n, n):
        found = list(statistics.shape[1:])
        raise MergeError(f"its Gram matrices have the shape {found}, not {[n, n]}")
    if not statistics.sum().isfinite():
        raise MergeError("its Gram matrices are not finite")
    gram = share("off_diagonal", off_diagonal) * statistics.double()
    diagonal = statistics.double().diagonal(dim1=1, dim2=2)
    gram.diagonal(dim1=1, dim2=2).copy_(diagonal)
    # So little of the mean that it shows only where there is nothing else.
    little = torch.finfo(torch.float64).eps * diagonal.sum(0).max().clamp(min=1e-200)
    wide = deltas.double()
    left = (wide @ gram).sum(0) + little * wide.mean(0)
    whole = gram.sum(0) + little * torch.eye(n, dtype=gram.dtype, device=gram.device)
    return torch.linalg.solve(whole, left, left=False).to(deltas.dtype)
