"""CondCAD: within a class, the domain cannot be found from the neighbors (Ruan et al., 2022).

    qᵢ = log Σ_{j≠i, y_j=y_i, d_j≠d_i} exp s_ij - log Σ_{j≠i, y_j=y_i} exp s_ij

Everything else is as in `cad`; the mean is over the samples whose first sum is not empty.

Differs from the paper, and from DomainBed: as `cad` does.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from afield.data.samples import Batch
from afield.training.methods.cad import CAD

__all__ = ["CondCAD"]


@dataclass(frozen=True)
class CondCAD(CAD):
    """Conditional CAD; it has the hyperparameters of CAD."""

    def neighbors(self, batch: Batch, counted: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Pairs in the first sum and in the second one, and the samples that have a term."""
        others = ~torch.eye(len(batch.y), dtype=torch.bool, device=batch.y.device)
        same_class = (batch.y[:, None] == batch.y) & others
        return counted & same_class, same_class, same_class.any(dim=1)
