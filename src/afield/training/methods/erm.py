"""Empirical risk minimization: pool all source domains (Vapnik, 1998).

    loss = mean cross-entropy over the pooled batch

Differs from the paper: nothing. Differs from DomainBed: nothing.
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from afield.training.learner import Learner
from afield.training.method import Batches, Logs, Method, pool

__all__ = ["ERM"]


@dataclass(frozen=True)
class ERM(Method):
    """Empirical risk minimization; it has no hyperparameters."""

    def loss(self, learner: Learner, batches: Batches) -> tuple[Tensor, Logs]:
        """Mean loss over all samples."""
        pooled = pool(batches)
        return F.cross_entropy(learner.model(pooled.x), pooled.y), {}
