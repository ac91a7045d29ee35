"""Transfer: heads near ours should do equally well on all domains (Zhang et al., 2021).

    Gap(A) = max_d R_d(A ∘ F) - min_d R_d(A ∘ F),   A an adversarial head, R_d the risk of domain d
    (1) features and head descend on R
    (2) features descend on weight · Gap(A), with A as the last update left it
    (3) A ← head; `ascents` times: A ← A + lr ∇_A weight · Gap(A), then A is pulled back into the
        ball of radius `radius` around the head (one norm over weights and biases)

R is the mean cross-entropy over all samples. (1) and (2) are steps of the run's optimizer; in (2)
the head has no gradient and stays. With a weight of 0, phase (2) is left out, since momentum alone
would move the features; then it is ERM.

Differs from the paper: as in DomainBed, the head is trained too, not only in the ball. Differs from
DomainBed's code: its setting `gda`, with which the network is never trained, is left out; the ball
is checked as the paper has it; the features are computed once for all ascents, which is the same
without dropout and BatchNorm; the learning rate of A is a multiple of the run's.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from afield.errors import SpecError
from afield.hyperparameters import Choice, LogUniform, Uniform
from afield.networks.backbone import Classifier
from afield.tensors import add, assign
from afield.training.building_blocks.second_pass import norm
from afield.training.learner import Learner, Task, require_classifier
from afield.training.method import Batches, Logs, Method, domain_means, pool

__all__ = ["Transfer"]


@dataclass(frozen=True)
class Transfer(Method):
    """Transferability; `weight` is that of the gap.

    `radius` is the paper's δ, `ascents` the number of steps of the adversary, and `ascent_rate` its
    learning rate as a multiple of the run's.
    """

    weight: Annotated[float, LogUniform(0.01, 10.0)] = 1.0
    radius: Annotated[float, Uniform(0.1, 3.0)] = 2.0
    ascents: Annotated[int, Choice((1, 2, 5, 10))] = 10
    ascent_rate: Annotated[float, LogUniform(0.1, 10.0)] = 1.0

    # One domain has no gap.
    min_domains: ClassVar[int] = 2

    def __post_init__(self) -> None:
        for name in ("weight", "radius", "ascent_rate"):
            if getattr(self, name) < 0:
                raise SpecError(f"transfer.{name}={getattr(self, name):g}: must not be below 0")
        if self.ascents < 1:
            raise SpecError(f"transfer.ascents={self.ascents}: must be above 0")

    def setup(self, model: nn.Module, task: Task) -> Learner:
        """Add the adversarial head, at first a copy of the head."""
        adversary = copy.deepcopy(require_classifier(model, "transfer").head)
        adversary.requires_grad_(requires_grad=True)
        return Learner(model, task, {"adversary": adversary}, separate=["adversary"])

    def update(self, learner: Learner, batches: Batches) -> Logs:
        """Descend on the risk and on the gap, then move the adversary."""
        pooled, model = pool(batches), cast(Classifier, learner.model)
        loss = F.cross_entropy(model(pooled.x), pooled.y)
        learner.descend(loss)
        if self.weight:
            gap = self._gap(learner, model.features(pooled.x), pooled.y, batches)
            learner.descend(gap, only=model.features.parameters())
        with torch.no_grad():
            z = model.features(pooled.x)
        gap = self._ascend(learner, z, pooled.y, batches)
        return {"loss": loss.detach(), "gap": gap}

    def _gap(self, learner: Learner, z: Tensor, y: Tensor, batches: Batches) -> Tensor:
        """The weighted gap between the risks of the adversary."""
        losses = F.cross_entropy(learner.parts["adversary"](z), y, reduction="none")
        risks = domain_means(losses, batches)
        return self.weight * (risks.max() - risks.min())

    def _ascend(self, learner: Learner, z: Tensor, y: Tensor, batches: Batches) -> Tensor:
        """Move the adversary away from the head; return the gap before the last step."""
        adversary = list(learner.parts["adversary"].parameters())
        head = [p.detach() for p in cast(Classifier, learner.model).head.parameters()]
        assign(adversary, head)
        gap = z.new_zeros(())
        for _ in range(self.ascents):
            gap = self._gap(learner, z, y, batches)
            gradient = learner.gradients(gap, adversary)
            add(adversary, gradient, times=self.ascent_rate * learner.lr)
            self.project(adversary, head)
        return gap.detach()

    @torch.no_grad()
    def project(self, adversary: Sequence[Tensor], head: Sequence[Tensor]) -> None:
        """Pull the adversary back into the ball around the head, in place."""
        away = torch._foreach_sub(list(adversary), list(head))
        # Within the ball, the adversary stays as it is, to the last bit.
        distance = norm(away)
        for value, center, offset in zip(adversary, head, away, strict=True):
            pulled = center + self.radius / distance * offset
            value.copy_(torch.where(distance > self.radius, pulled, value))
