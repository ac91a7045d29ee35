"""RIDG: features contribute alike to the logits of a class (Chen et al., 2023).

    rᵢ[c, j] = W_cj z_ij                              contribution of feature j to logit c
    G_y ← (1 - momentum) G_y + momentum · mean of rᵢ over the samples of class y in the batch
    loss = mean cross-entropy over the pooled batch
           + penalty · Σ_y mean over the samples i of class y of mean_c Σ_j (rᵢ - G_y)²

G_y is a constant, and is updated before it is used; when a class is first seen, it is the mean of
the batch. The sum is over the classes in the batch. Without a penalty it is ERM.

Differs from the paper, and from the authors' code: nothing.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from afield.hyperparameters import LogUniform
from afield.training.building_blocks.forward import Outputs, forward
from afield.training.building_blocks.penalties import check_settings
from afield.training.learner import Learner, Task, require_classifier
from afield.training.method import Batches, Logs, Method

__all__ = ["RIDG"]


@dataclass(frozen=True)
class RIDG(Method):
    """Rationale invariance; `momentum` is the share of a batch in the memory of its classes."""

    penalty: Annotated[float, LogUniform(0.01, 0.1)] = 0.01
    momentum: Annotated[float, LogUniform(1e-4, 0.1)] = 1e-3

    def __post_init__(self) -> None:
        check_settings(self, not_negative=["penalty"], shares=["momentum"])

    def setup(self, model: nn.Module, task: Task) -> Learner:
        """Add the memory of the classes' mean contributions."""
        weight = require_classifier(model, self.name).head.weight.detach()
        learner = Learner(model, task)
        learner.memory["bank"] = weight.new_zeros(len(weight), *weight.shape)
        learner.memory["seen"] = torch.zeros(len(weight), dtype=torch.bool, device=weight.device)
        return learner

    def loss(self, learner: Learner, batches: Batches) -> tuple[Tensor, Logs]:
        """Mean loss plus the weighted distance of contributions from the memory."""
        outputs = forward(learner, batches)
        weight = require_classifier(learner.model, self.name).head.weight
        counts = F.one_hot(outputs.y, len(weight)).sum(dim=0)
        bank = self.remember(learner, outputs, weight.detach(), counts)
        contributions = outputs.features[:, None] * weight
        squares = (contributions - bank[outputs.y]).square().sum(dim=2).mean(dim=1)
        # Every class in the batch has the same weight, however many samples it has.
        distance = (squares / counts[outputs.y]).sum()
        risk = outputs.risk
        logs = {"risk": risk.detach(), "distance": distance.detach()}
        return risk + self.penalty * distance, logs

    @torch.no_grad()
    def remember(
        self, learner: Learner, outputs: Outputs, weight: Tensor, counts: Tensor
    ) -> Tensor:
        """Update the memory of the classes in the batch, and return it."""
        members = F.one_hot(outputs.y, len(weight)).to(weight)
        means = members.T @ outputs.features / counts.clamp(min=1)[:, None]
        bank, seen = learner.memory["bank"], learner.memory["seen"]
        share = (1 - (1 - self.momentum) * seen.to(weight)) * (counts > 0)
        bank = torch.lerp(bank, means[:, None] * weight, share[:, None, None])
        learner.memory |= {"bank": bank, "seen": seen | (counts > 0)}
        return bank
