"""Spectral decoupling: small logits leave gradient for further features (Pezeshki et al., 2021).

    loss = mean cross-entropy over the pooled batch + penalty · mean of f² over samples and classes

It does not use the domains. Without a penalty it is ERM.

Differs from the paper: the mean over classes instead of half their sum, as in DomainBed. Differs
from DomainBed: nothing.
"""

from dataclasses import dataclass
from typing import Annotated

import torch.nn.functional as F
from torch import Tensor

from afield.hyperparameters import LogUniform
from afield.training.building_blocks.penalties import check_settings
from afield.training.learner import Learner
from afield.training.method import Batches, Logs, Method, pool

__all__ = ["SD"]


@dataclass(frozen=True)
class SD(Method):
    """Spectral decoupling; `penalty` is the weight of the squared logits."""

    penalty: Annotated[float, LogUniform(1e-5, 0.1)] = 0.1

    def __post_init__(self) -> None:
        check_settings(self, not_negative=["penalty"])

    def loss(self, learner: Learner, batches: Batches) -> tuple[Tensor, Logs]:
        """Mean loss plus the weighted mean of the squared logits."""
        pooled = pool(batches)
        logits = learner.model(pooled.x)
        risk, squares = F.cross_entropy(logits, pooled.y), logits.square().mean()
        logs = {"risk": risk.detach(), "squared logits": squares.detach()}
        return risk + self.penalty * squares, logs
