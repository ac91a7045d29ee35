"""MetaReg: learn which weights of the head to penalize (Balaji et al., 2018).

    R_φ(θ) = Σ φ_j |θ_j| over the weights and biases of a head θ;   φ starts at 0

In the first phase, a share of the run, the base network has shared features F and a head θᵢ for
each source domain; Lᵢ is the loss of domain i. Every step picks two domains a ≠ b at random:

    β ← θ_a;   `inner_steps` times   β ← β - α ∇_β [L_a(F, β) + R_φ(β)]
    φ ← φ - α₂ ∇_φ L_b(F, β), where the derivative goes through the steps on β; F and θ stay
    F, θ₁ … θ_n ← a step of the optimizer on the mean of Lᵢ(F, θᵢ)

In the second phase φ is fixed, and a new network is trained on all source domains:

    loss = mean cross-entropy + R_φ(head)

The new network is deployed. Checkpoints of the first phase show it untrained, and are hardly ever
picked. Averages observe it from the first step: `swad` mistakes the first phase, in which no loss
falls, for its valley, and includes the untrained weights; use `last` or `ema`.

Differs from the paper: the task network is the head; the base networks take one joint step of the
run's optimizer, not several steps each in turn; φ is learned from the same pass over a batch, just
before that step; both phases share the steps of one run. The paper's hyperparameters and the
initial φ are not known to us: α is a multiple of the run's learning rate, and α₂ is `meta_rate`. φ
may become negative: a weight with a negative φ grows for as long as training continues.
"""

from dataclasses import dataclass
from typing import Annotated, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from afield.errors import SpecError
from afield.hyperparameters import Choice, LogUniform, Uniform
from afield.networks.backbone import Classifier
from afield.training.learner import Learner, Task
from afield.training.method import Batches, Logs, Method, pool

__all__ = ["MetaReg"]


@dataclass(frozen=True)
class MetaReg(Method):
    """A meta-learned regularizer.

    `meta_share` is the share of the steps in which the regularizer is learned. `inner_rate` is α as
    a multiple of the run's learning rate, and `meta_rate` is α₂.
    """

    meta_share: Annotated[float, Uniform(0.1, 0.7)] = 0.5
    inner_steps: Annotated[int, Choice((1, 3, 5))] = 3
    inner_rate: Annotated[float, LogUniform(1.0, 100.0)] = 10.0
    meta_rate: Annotated[float, LogUniform(1e-3, 1.0)] = 0.01

    def __post_init__(self) -> None:
        if not 0 <= self.meta_share < 1:
            raise SpecError(f"metareg.meta_share={self.meta_share:g}: must be from 0 to below 1")
        if self.inner_steps < 1:
            raise SpecError(f"metareg.inner_steps={self.inner_steps}: must be above 0")
        for name in ("inner_rate", "meta_rate"):
            if getattr(self, name) < 0:
                raise SpecError(f"metareg.{name}={getattr(self, name):g}: must not be below 0")

    def check(self, domains: int) -> None:
        """Raise `SpecError` for one domain: the regularizer is learned on pairs of domains."""
        if domains < 2:
            raise SpecError(f"metareg needs two or more source domains per step, not {domains}")

    def setup(self, model: nn.Module, task: Task) -> Learner:
        """Add the base network with a head for each domain, and the regularizer's weights."""
        if not isinstance(model, Classifier):
            kind = type(model).__name__
            raise SpecError(f"metareg needs a Classifier (features and a head), not {kind}")
        # All heads are one layer; each head is a block of outputs, with the same initialization.
        base = task.network(len(task.sources) * len(task.classes))
        learner = Learner(model, task, parts={"base": base})
        learner.memory["phi"] = torch.zeros_like(_join(model.head.weight, model.head.bias))
        return learner

    def loss(self, learner: Learner, batches: Batches) -> tuple[Tensor, Logs]:
        """Mean loss over all samples, plus the learned penalty on the head."""
        pooled, head = pool(batches), cast(Classifier, learner.model).head
        penalty = _penalty(learner.memory["phi"], _join(head.weight, head.bias))
        loss = F.cross_entropy(learner.model(pooled.x), pooled.y) + penalty
        return loss, {"penalty": penalty.detach()}

    def update(self, learner: Learner, batches: Batches) -> Logs:
        """Learn the regularizer in the first phase; train with it in the second."""
        # Rounded down, so that the new network is trained for one step at least.
        if learner.step < int(self.meta_share * learner.task.steps):
            return self._learn_regularizer(learner, batches)
        return super().update(learner, batches)

    def _learn_regularizer(self, learner: Learner, batches: Batches) -> Logs:
        """Update φ, then descend on the loss of the base network."""
        self.check(len(batches))
        base, pooled = cast(Classifier, learner.parts["base"]), pool(batches)
        heads_by_classes = (len(learner.task.sources), len(learner.task.classes))
        features = base.features(pooled.x)
        logits = base.head(features).unflatten(1, heads_by_classes)
        logits = logits[torch.arange(len(logits), device=logits.device), pooled.domain]
        a, b = torch.randperm(len(batches))[:2].tolist()
        by_batch = features.detach().split([len(batch.y) for batch in batches])
        # A slice, not a number: reading a number off the device would make the device wait.
        domain = batches[a].domain[:1]
        head = (
            parameter.detach().unflatten(0, heads_by_classes)[domain][0]
            for parameter in base.head.parameters()
        )
        phi = learner.memory["phi"].detach().requires_grad_()
        beta = self._adapt(learner, phi, _join(*head), by_batch[a], batches[a].y)
        unseen = F.cross_entropy(_logits(by_batch[b], beta), batches[b].y)
        (gradient,) = learner.gradients(unseen, [phi])
        learner.memory["phi"] = phi.detach() - self.meta_rate * gradient
        loss = F.cross_entropy(logits, pooled.y)
        learner.descend(loss)
        size = learner.memory["phi"].abs().mean()
        return {"base_loss": loss.detach(), "unseen": unseen.detach(), "phi": size}

    def _adapt(
        self, learner: Learner, phi: Tensor, beta: Tensor, features: Tensor, y: Tensor
    ) -> Tensor:
        """The head after regularized steps on a domain, as a function of φ."""
        beta = beta.requires_grad_()
        for _ in range(self.inner_steps):
            loss = F.cross_entropy(_logits(features, beta), y) + _penalty(phi, beta)
            (gradient,) = learner.gradients(loss, [beta], create_graph=True)
            beta = beta - self.inner_rate * learner.lr * gradient
        return beta


def _join(weight: Tensor, bias: Tensor) -> Tensor:
    """A head as one matrix; the last column is the bias."""
    return torch.cat([weight, bias[:, None]], dim=1)


def _logits(features: Tensor, head: Tensor) -> Tensor:
    """Logits of a head that is one matrix."""
    return F.linear(features, head[:, :-1], head[:, -1])


def _penalty(phi: Tensor, head: Tensor) -> Tensor:
    """R_φ of a head."""
    return (phi * head.abs()).sum()
