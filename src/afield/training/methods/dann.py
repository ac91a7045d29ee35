"""DANN: features that do not reveal the domain (Ganin et al., 2016).

    loss = J_l(h(F(x)), y) + J_d(D(R_λ(F(x))), d)
    R_λ is the identity, and multiplies gradients by -λ
    λ(p) = weight · (2 / (1 + e^(-γ p)) - 1),   p = max(step / steps - delay, 0)

So the domain classifier D, a small multilayer perceptron, learns to distinguish the source domains,
and the features F learn to prevent it. With a weight of 0, or with one source domain, it is ERM.

DAN in the tables of the CrossGrad paper is this method with other constants: `gamma=15`,
`delay=0.04` (2,000 of 50,000 steps) and `hidden=256,128,128,128`.

Differs from the paper: the task is to generalize, so all domains of the discriminator are sources;
one optimizer with one constant learning rate trains everything. Differs from DomainBed's code: a
single step reverses gradients, instead of alternating steps for the two sides, and λ follows the
schedule; theirs is constant (`gamma=1000`), and D has an Adam of its own. Differs from the code of
DAN: D sees the features once, not twice side by side, and F is the run's network, not a special
one.
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


class _ReverseGradient(torch.autograd.Function):
    """The identity with a reversed gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, strength: float) -> Tensor:
        """Return the input unchanged."""
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Reverse the gradient and scale it by `strength`."""
        return -ctx.strength * gradients[0], None


@dataclass(frozen=True)
class DANN(Method):
    """Domain-adversarial training.

    `weight` is λ at the end, `gamma` controls how soon λ approaches it, and `delay` is the share
    of the run before λ rises. `hidden` has the widths of the domain classifier's hidden layers.
    """

    weight: Annotated[float, LogUniform(0.01, 10.0)] = 1.0
    gamma: Annotated[float, Variant((10.0, 15.0))] = 10.0
    delay: Annotated[float, Variant((0.0, 0.04))] = 0.0
    hidden: Annotated[tuple[int, ...], Variant(((256, 256), (256, 128, 128, 128)))] = (256, 256)

    def __post_init__(self) -> None:
        name = type(self).__name__.lower()
        for setting in ("weight", "gamma"):
            if getattr(self, setting) < 0:
                raise SpecError(f"{name}.{setting}={getattr(self, setting):g}: must not be below 0")
        if not 0 <= self.delay <= 1:
            raise SpecError(f"{name}.delay={self.delay:g}: must be a share of the run from 0 to 1")
        if any(width < 1 for width in self.hidden):
            raise SpecError(f"{name}.hidden={self.hidden}: every width must be above 0")

    def setup(self, model: nn.Module, task: Task) -> Learner:
        """Add the domain classifier."""
        if not isinstance(model, Classifier):
            name, kind = type(self).__name__.lower(), type(model).__name__
            raise SpecError(f"{name} needs a Classifier (features and a head), not {kind}")
        widths = (model.width, *self.hidden)
        layers: list[nn.Module] = []
        for before, after in pairwise(widths):
            layers += [nn.Linear(before, after), nn.ReLU(inplace=True)]
        domain = nn.Sequential(*layers, nn.Linear(widths[-1], len(task.sources)))
        return Learner(model, task, {"domain": domain})

    def strength(self, step: int, steps: int) -> float:
        """λ at a step of a run of `steps` steps."""
        progress = max(step / steps - self.delay, 0.0)
        return self.weight * (2 / (1 + math.exp(-self.gamma * progress)) - 1)

    def loss(self, learner: Learner, batches: Batches) -> tuple[Tensor, Logs]:
        """Cross-entropy of the labels, plus that of the domains with reversed gradients."""
        pooled, model = pool(batches), cast(Classifier, learner.model)
        features = model.features(pooled.x)
        reversed_features = _ReverseGradient.apply(
            features, self.strength(learner.step, learner.task.steps)
        )
        logits, domain_loss = self.domain_loss(learner, reversed_features, pooled)
        accuracy = (logits.detach().argmax(dim=1) == pooled.domain).float().mean()
        loss = F.cross_entropy(model.head(features), pooled.y)
        logs = {"label loss": loss.detach(), "domain accuracy": accuracy}
        return loss + domain_loss, logs

    def domain_loss(
        self, learner: Learner, features: Tensor, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        """Logits of the domain classifier, and its loss."""
        logits = learner.parts["domain"](features)
        return logits, F.cross_entropy(logits, batch.domain)
