"""ERM++: ERM with a recipe: a head that learns first, averaged weights (Teterwak et al., 2023).

    first `linear_share` of the steps    the head alone, with an optimizer of its own
    then                                 all weights, with a new optimizer
    loss = mean cross-entropy over the pooled batch

The recipe has more parts, which are settings of a run: averaged weights, deployed from 600 of 5,000
steps on (`--average swa --set swa.start=0.12 --set swa.period=1`); a better start, from weights
that were trained with AugMix (`--weights`); and BatchNorm that is not frozen (`--set
freeze_bn=false`). Much of the published gain comes from the better start.

Differs from the paper: the learning rate is not lowered on a plateau of the validation loss (use
`--set lr_schedule=cosine`), and the network is not trained a second time on training and validation
splits together. DomainBed's training script does neither. Differs from DomainBed's code: the linear
start is a share of the run (its `linear_steps` S are S + 1 steps in its code), its learning rate is
a multiple of the run's, and LARS, which fails there, is left out. If the head is frozen, there is
no linear start.
"""

from dataclasses import dataclass
from typing import Annotated, cast

import torch
import torch.nn.functional as F
from torch import nn

from afield.errors import SpecError
from afield.hyperparameters import LogUniform, Uniform
from afield.networks.backbone import Classifier
from afield.training.learner import Learner, Task, require_classifier
from afield.training.method import Batches, Logs, Method, pool

__all__ = ["ERMPlusPlus"]


@dataclass(frozen=True)
class ERMPlusPlus(Method):
    """ERM with a linear start.

    `linear_share` is the share of the steps in which only the head is trained; `linear_rate` is its
    learning rate as a multiple of the run's.
    """

    linear_share: Annotated[float, Uniform(0.05, 0.2)] = 0.1
    linear_rate: Annotated[float, LogUniform(0.1, 10.0)] = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.linear_share < 1:
            raise SpecError(
                f"erm_plus_plus.linear_share={self.linear_share:g}: must be from 0 to below 1"
            )
        if self.linear_rate < 0:
            raise SpecError(f"erm_plus_plus.linear_rate={self.linear_rate:g}: must not be below 0")

    def setup(self, model: nn.Module, task: Task) -> Learner:
        """Add the optimizer of the head."""
        head = require_classifier(model, "erm_plus_plus").head
        learner = Learner(model, task)
        if head.weight.requires_grad:
            learner.add_optimizer("head", head.parameters(), lr_multiplier=self.linear_rate)
        return learner

    def update(self, learner: Learner, batches: Batches) -> Logs:
        """Descend on the head alone, or on all weights."""
        pooled, model = pool(batches), cast(Classifier, learner.model)
        linear = learner.step < round(self.linear_share * learner.task.steps)
        if linear and "head" in learner.optimizers:
            with torch.no_grad():
                features = model.features(pooled.x)
            loss = F.cross_entropy(model.head(features), pooled.y)
            learner.descend(loss, learner.optimizers["head"])
        else:
            loss = F.cross_entropy(model(pooled.x), pooled.y)
            learner.descend(loss)
        return {"loss": loss.detach()}
