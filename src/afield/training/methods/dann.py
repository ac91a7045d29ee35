"""DANN: features that do not reveal the domain (Ganin et al., 2016).

    loss = J_l(h(F(x)), y) + J_d(D(R_λ(F(x))), d)
    R_λ is the identity, and multiplies gradients by -λ
    λ(p) = weight · (2 / (1 + e^(-γ p)) - 1),   p = max(step / steps - delay, 0)

So the domain classifier D, a small multilayer perceptron, learns to distinguish the source domains,
and the features F learn to prevent it. With a weight of 0, or with one source domain, it is ERM.

With `turns` of s > 0, the two sides take turns, as in DomainBed: in every round of s + 1 steps, s
are for the discriminator and one, the s-th, is for features and head.

    discriminator   L_D = J_d(D(z), d) + gradient_penalty · mean_i ‖∂ Σ J_d / ∂zᵢ‖²
    generator       J_l - weight · L_D

Then λ is constant (`gamma` and `delay` have no effect), D has an optimizer of its own, with
`domain_rate` times the learning rate, and Adam has β = (beta1, 0.9).

DAN in the tables of the CrossGrad paper is this method with other constants: `gamma=15`,
`delay=0.04` (2,000 of 50,000 steps) and `hidden=256,128,128,128`.

Differs from the paper: the task is to generalize, so all domains of the discriminator are sources;
one optimizer with one constant learning rate trains everything. Differs from DomainBed's code: by
default, a single step reverses gradients, and λ follows the schedule; `turns=1` is their form, with
the run's weight decay on both sides. Differs from the code of DAN: D sees the features once, not
twice side by side, and F is the run's network, not a special one.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from afield.data.samples import Batch
from afield.errors import SpecError
from afield.hyperparameters import Added, LogUniform, Variant
from afield.networks.backbone import Classifier
from afield.training.building_blocks.forward import reverse_gradient
from afield.training.building_blocks.penalties import check_settings
from afield.training.learner import Learner, Task, perceptron, require_classifier
from afield.training.method import Batches, Logs, Method, pool

__all__ = ["DANN"]


@dataclass(frozen=True)
class DANN(Method):
    """Domain-adversarial training.

    `weight` is λ at the end, `gamma` controls how soon λ approaches it, and `delay` is the share
    of the run before λ rises. `hidden` has the widths of the domain classifier's hidden layers.
    `gradient_penalty`, `domain_rate` and `beta1` belong to the form with `turns`.
    """

    weight: Annotated[float, LogUniform(0.01, 10.0)] = 1.0
    gamma: Annotated[float, Variant((10.0, 15.0))] = 10.0
    delay: Annotated[float, Variant((0.0, 0.04))] = 0.0
    hidden: Annotated[tuple[int, ...], Variant(((256, 256), (256, 128, 128, 128)))] = (256, 256)
    turns: Annotated[int, Variant((0, 1)), Added(neutral=0)] = 0
    gradient_penalty: Annotated[float, Variant((0.0, 0.1)), Added(neutral=0.0)] = 0.0
    domain_rate: Annotated[float, Variant((1.0, 3.0)), Added(neutral=1.0)] = 1.0
    beta1: Annotated[float, Variant((0.5, 0.0)), Added(neutral=0.5)] = 0.5

    def __post_init__(self) -> None:
        amounts = ["weight", "gamma", "turns", "gradient_penalty", "domain_rate"]
        check_settings(self, not_negative=amounts, shares=["delay"])
        if not 0 <= self.beta1 < 1:
            raise SpecError(f"{self.name}.beta1={self.beta1:g}: must be from 0 to below 1")
        if any(width < 1 for width in self.hidden):
            raise SpecError(f"{self.name}.hidden={self.hidden}: every width must be above 0")

    def setup(self, model: nn.Module, task: Task) -> Learner:
        """Add the domain classifier."""
        width, domains = require_classifier(model, self.name).width, len(task.sources)
        domain = perceptron(width, *self.hidden, domains, inplace=True)
        return self.learner(model, task, {"domain": domain})

    def learner(self, model: nn.Module, task: Task, parts: Mapping[str, nn.Module]) -> Learner:
        """Return the state: with turns, the parts have an optimizer of their own."""
        if not self.turns:
            return Learner(model, task, parts)
        settings = {"betas": (self.beta1, 0.9)}
        learner = Learner(model, task, parts, separate=list(parts), settings=settings)
        multiple, trained = self.domain_rate, learner.parts.parameters()
        learner.add_optimizer("domain", trained, lr_multiplier=multiple, settings=settings)
        return learner

    def strength(self, step: int, steps: int) -> float:
        """λ at a step of a run of `steps` steps."""
        progress = max(step / steps - self.delay, 0.0)
        return self.weight * (2 / (1 + math.exp(-self.gamma * progress)) - 1)

    def loss(self, learner: Learner, batches: Batches) -> tuple[Tensor, Logs]:
        """Cross-entropy of the labels, plus that of the domains with reversed gradients."""
        pooled, model = pool(batches), cast(Classifier, learner.model)
        features = model.features(pooled.x)
        strength = self.strength(learner.step, learner.task.steps)
        reversed_features = reverse_gradient(features, strength)
        logits, domain_loss = self.domain_loss(learner, reversed_features, pooled)
        accuracy = (logits.detach().argmax(dim=1) == pooled.domain).float().mean()
        loss = F.cross_entropy(model.head(features), pooled.y)
        logs = {"label loss": loss.detach(), "domain accuracy": accuracy}
        return loss + domain_loss, logs

    def update(self, learner: Learner, batches: Batches) -> Logs:
        """Do one step for everything, or with turns for the side whose turn it is."""
        if not self.turns:
            return super().update(learner, batches)
        pooled, model = pool(batches), cast(Classifier, learner.model)
        discriminates = (learner.step + 1) % (1 + self.turns) < self.turns
        with torch.set_grad_enabled(not discriminates):
            features = model.features(pooled.x)
        domain_loss = self.discriminator_loss(learner, features, pooled)
        if discriminates:
            learner.descend(domain_loss, learner.optimizers["domain"])
            return {"discriminator loss": domain_loss.detach()}
        loss = F.cross_entropy(model.head(features), pooled.y) - self.weight * domain_loss
        learner.descend(loss, only=learner.parameters())
        return {"loss": loss.detach()}

    def discriminator_loss(self, learner: Learner, features: Tensor, batch: Batch) -> Tensor:
        """Loss of the domain classifier, with the penalty on its gradients."""
        inputs = self.domain_inputs(learner, features, batch)
        if not self.gradient_penalty:
            return self.mean_loss(learner.parts["domain"](inputs), batch)
        logits = learner.parts["domain"](inputs.requires_grad_())
        total = F.cross_entropy(logits, batch.domain, reduction="sum")
        (slopes,) = learner.gradients(total, [inputs], create_graph=True)
        squares = slopes.square().sum(dim=1)
        return self.mean_loss(logits, batch) + self.gradient_penalty * squares.mean()

    def domain_loss(
        self, learner: Learner, features: Tensor, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        """Logits of the domain classifier, and its loss."""
        logits = learner.parts["domain"](self.domain_inputs(learner, features, batch))
        return logits, self.mean_loss(logits, batch)

    def domain_inputs(self, learner: Learner, features: Tensor, batch: Batch) -> Tensor:
        """What the domain classifier sees."""
        del learner, batch
        return features

    def mean_loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Mean loss of the domain classifier."""
        return F.cross_entropy(logits, batch.domain)
