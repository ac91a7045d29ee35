"""A contrastive loss with labels: samples of a class should be near each other.

    e_ij = exp(z_i·z_j / 0.07) of normalized rows
    loss = Σ_i -1/#pos Σ_{j pos} log(½ e_ij / (½ Σ_{j ≠ i} e_ij + 1e-5) + 1e-5) / (rows + 1)

The positives of a sample are the others of its class; samples alone in their class are left out of
the sum and of the rows. This is the form of ADRMX, whose weights within and across domains are ½.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["supervised_contrast"]

TEMPERATURE, SMALL = 0.07, 1e-5


def supervised_contrast(z: Tensor, y: Tensor) -> Tensor:
    """Contrastive loss of features with these labels."""
    rows = F.normalize(z, dim=1)
    other = ~torch.eye(len(y), dtype=torch.bool, device=y.device)
    e = 0.5 * (rows @ rows.T / TEMPERATURE).exp() * other
    positive = (y[:, None] == y) & other
    count = positive.sum(dim=1)
    likelihoods = (e / (e.sum(dim=1, keepdim=True) + SMALL) + SMALL).log()
    means = -(likelihoods * positive).sum(dim=1) / count.clamp(min=1)
    return means.sum() / ((count > 0).sum() + 1)
