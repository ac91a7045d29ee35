"""RegMean: least-squares fit to the outputs of the experts' linear layers (Jin et al., 2023).

    merged = (Σ_d Δ_d G_d) (Σ_d G_d)⁻¹,   G_d = Σ x xᵀ over the layer's inputs x,
                                          its off-diagonal entries times `off_diagonal`

`statistics` are these Gram matrices, in one mapping or file per expert: a matrix [n, n] under the
name of a weight [m, n], as in torch's linear layers. Weights without a Gram matrix are averaged.

Differs from the paper: it is computed in float64; and an input that was 0 in all samples, for which
any weight fits equally well, gets the mean.
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
        shape = list(statistics.shape[1:])
        raise MergeError(f"its Gram matrices have the shape {shape}, not {[n, n]}")
    if not statistics.sum().isfinite():
        raise MergeError("its Gram matrices are not finite")
    gram = share("off_diagonal", off_diagonal) * statistics.double()
    diagonal = statistics.double().diagonal(dim1=1, dim2=2)
    gram.diagonal(dim1=1, dim2=2).copy_(diagonal)
    # Adds a tiny multiple of the mean, which matters only where the Gram matrices are 0.
    ridge = torch.finfo(torch.float64).eps * diagonal.sum(0).max().clamp(min=1e-200)
    wide = deltas.double()
    left = (wide @ gram).sum(0) + ridge * wide.mean(0)
    total = gram.sum(0) + ridge * torch.eye(n, dtype=gram.dtype, device=gram.device)
    return torch.linalg.solve(total, left, left=False).to(deltas.dtype)
