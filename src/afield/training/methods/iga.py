"""IGA: the gradients of all domains agree (Koyama & Yamaguchi, 2020).

    loss = mean(risks) + penalty · Σ_d ‖g_d - mean_d g_d‖²

g_d is the gradient of the risk of domain d in all weights. The penalty needs second derivatives of
the whole network: a step takes about three times as long as one of ERM, and more memory. Without a
penalty, or with one source domain, it is ERM on the mean of the risks.

Differs from the paper: nothing. Differs from DomainBed: every domain has a forward pass of its
own; attention uses the implementation that has a second derivative.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from afield.hyperparameters import LogUniform
from afield.training.building_blocks.domain_gradients import domain_gradients
from afield.training.building_blocks.penalties import check_settings
from afield.training.learner import Learner
from afield.training.method import Batches, Logs, Method

__all__ = ["IGA"]


@dataclass(frozen=True)
class IGA(Method):
    """Inter-gradient alignment; `penalty` is the paper's λ."""

    penalty: Annotated[float, LogUniform(10.0, 1e5)] = 1000.0

    def __post_init__(self) -> None:
        check_settings(self, not_negative=["penalty"])

    @property
    def differentiates_gradients(self) -> bool:
        """True: the spread of the gradients is minimized."""
        return True

    def loss(self, learner: Learner, batches: Batches) -> tuple[Tensor, Logs]:
        """Mean risk plus the weighted spread of the gradients."""
        risks, gradients = domain_gradients(learner, batches, create_graph=True)
        stacked = (torch.stack(each) for each in gradients)
        spreads = [(each - each.detach().mean(dim=0)).square().sum() for each in stacked]
        risk, spread = risks.mean(), torch.stack(spreads).sum()
        return risk + self.penalty * spread, {"risk": risk.detach(), "spread": spread.detach()}
