"""DANN: features from which no domain can be told (Ganin et al., 2016).

    loss = J_l(h(F(x)), y) + J_d(D(R_λ(F(x))), d)
    R_λ is the identity, and turns gradients into -λ times themselves
    λ(p) = weight · (2 / (1 + e^(-γ p)) - 1),   p = max(step / steps - delay, 0)

So the domain classifier D, a small multilayer perceptron, learns to tell the source domains apart,
and the features F to prevent it. With a weight of 0, or one source domain, it is ERM.

DAN in the tables of the paper on CrossGrad is this method with other constants: `gamma=15`,
`delay=0.04` (2,000 of 50,000 steps) and `hidden=256,128,128,128`.

Differs from the paper: the task is to generalise, so all domains of the discriminator are sources;
one optimiser and one learning rate for everything, which does not fall. Differs from DomainBed's
code: gradients are reversed in one step, not in turns of one step for either side, and λ has the
schedule; theirs is constant (`gamma=1000`), and has an Adam of its own for D. Differs from the code
of DAN: D sees the features once, not twice side by side, and F is the run's network, not one of its
own.
"""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from afield.errors import SpecError
from afield.hyperparameters import LogUniform, Variant
from afield.networks.backbone import Classifier
from afield.training.method import Batch, Batches, Learner, Logs, Method, Task, pool

__all__ = ["DANN"]


class _Reversed(torch.autograd.Function):
    """The identity, whose gradient is turned round."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, strength: float) -> Tensor:
        """The same values."""
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None]:
        """So many times the opposite."""
        return -ctx.strength * slopes[0], None


@dataclass(frozen=True)
class DANN(Method):
    """`weight` is λ at the end; `gamma` how soon it is reached, after a `delay` (share of the run).

    `hidden` are the widths of the domain classifier's hidden layers.
    """

    weight: Annotated[float, LogUniform(0.01, 10.0)] = 1.0
    gamma: Annotated[float, Variant((10.0, 15.0))] = 10.0
    delay: Annotated[float, Variant((0.0, 0.04))] = 0.0
    hidden: Annotated[tuple[int, ...], Variant(((256, 256), (256, 128, 128, 128)))] = (256, 256)

    def __post_init__(self) -> None:
        name = type(self).__name__.lower()
        for setting in ("weight", "gamma"):
            if getattr(self, setting) < 0:
                raise SpecError(f"{name}.{setting}={getattr(self, setting):g}: not below 0")
        if not 0 <= self.delay <= 1:
            raise SpecError(f"{name}.delay={self.delay:g}: a share of the run, from 0 to 1")
        if any(width < 1 for width in self.hidden):
            raise SpecError(f"{name}.hidden={self.hidden}: every layer needs a unit")

    def setup(self, model: nn.Module, task: Task) -> Learner:
        """Add the domain classifier."""
        if not isinstance(model, Classifier):
            name, kind = type(self).__name__.lower(), type(model).__name__
            raise SpecError(f"{name} takes a Classifier, features and a head; {kind} is none")
        widths = (model.width, *self.hidden)
        layers: list[nn.Module] = []
        for before, after in pairwise(widths):
            layers += [nn.Linear(before, after), nn.ReLU(inplace=True)]
        domain = nn.Sequential(*layers, nn.Linear(widths[-1], len(task.sources)))
        return Learner(model, task, {"domain": domain})

    def strength(self, step: int, steps: int) -> float:
        """λ at a step of so many."""
        done = max(step / steps - self.delay, 0.0)
        return self.weight * (2 / (1 + math.exp(-self.gamma * done)) - 1)

    def loss(self, learner: Learner, batches: Batches) -> tuple[Tensor, Logs]:
        """Cross-entropy of the labels, and of the domains behind reversed gradients."""
        pooled, model = pool(batches), cast(Classifier, learner.model)
        features = model.features(pooled.x)
        turned = _Reversed.apply(features, self.strength(learner.step, learner.task.steps))
        scores, domain_loss = self.domain_loss(learner, turned, pooled)
        told = (scores.detach().argmax(dim=1) == pooled.domain).float().mean()
        loss = F.cross_entropy(model.head(features), pooled.y)
        logs = {"label loss": loss.detach(), "domain accuracy": told}
        return loss + domain_loss, logs

    def domain_loss(
        self, learner: Learner, features: Tensor, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        """The domain classifier's logits, and its loss."""
        scores = learner.parts["domain"](features)
        return scores, F.cross_entropy(scores, batch.domain)
