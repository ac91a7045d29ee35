"""MetaReg: learn which weights of the head to penalise (Balaji et al., 2018).

    R_φ(θ) = Σ φ_j |θ_j| over the weights and biases of a head θ;   φ starts at 0

For a share of the run, every step takes the source domains' losses Lᵢ, on features F shared by a
head θᵢ for each, picks two domains a ≠ b at random, and does

    β ← θ_a;   `inner_steps` times   β ← β - α ∇_β [L_a(F, β) + R_φ(β)]
    φ ← φ - α₂ ∇_φ L_b(F, β), the derivative going through the steps on β; F and θ stay
    F, θ₁ … θ_n ← a step of the optimiser on the mean of Lᵢ(F, θᵢ)

and for the rest of it, with φ as it is then, a fresh network is trained on all source domains:

    loss = mean cross-entropy + R_φ(head)

That fresh network is what is deployed. Checkpoints before its training show it untrained, and are
hardly ever picked. Averages follow it from the first step: `swad` takes that first phase, in which
no loss falls, for its valley, and mixes the untrained weights in; use `last` or `ema`.

Differs from the paper: the task network is the head; the base networks take one step of the run's
optimiser together, not some each in turn, and φ is learned from the same pass over a batch, just
before that step; both phases share the steps of one run. Its hyperparameters and the start of φ
are not known to us: α is a multiple of the run's learning rate, α₂ is `meta_rate`. φ is not kept
above 0: a weight with a φ below it is made to grow, for as long as training goes on.
"""

from dataclasses import dataclass
from typing import Annotated, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from afield.errors import SpecError
from afield.hyperparameters import Choice, LogUniform, Uniform
from afield.networks.backbone import Classifier
from afield.training.method import Batches, Learner, Logs, Method, Task, pool

__all__ = ["MetaReg"]


@dataclass(frozen=True)
class MetaReg(Method):
    """A meta-learned regulariser; `meta_share` is the share of the steps in which it is learned.

    `inner_rate` is α as a multiple of the run's learning rate, `meta_rate` is α₂.
    """

    meta_share: Annotated[float, Uniform(0.1, 0.7)] = 0.5
    inner_steps: Annotated[int, Choice((1, 3, 5))] = 3
    inner_rate: Annotated[float, LogUniform(1.0, 100.0)] = 10.0
    meta_rate: Annotated[float, LogUniform(1e-3, 1.0)] = 0.01

    def __post_init__(self) -> None:
        if not 0 <= self.meta_share < 1:
            raise SpecError(f"metareg.meta_share={self.meta_share:g}: from 0 to below 1")
        if self.inner_steps < 1:
            raise SpecError(f"metareg.inner_steps={self.inner_steps}: must be above 0")
        for name in ("inner_rate", "meta_rate"):
            if getattr(self, name) < 0:
                raise SpecError(f"metareg.{name}={getattr(self, name):g}: must not be below 0")

    def check(self, domains: int) -> None:
        """The regulariser is learned on one domain for another."""
        if domains < 2:
            raise SpecError(f"metareg needs two source domains or more a step, not {domains}")

    def setup(self, model: nn.Module, task: Task) -> Learner:
        """Add what the regulariser is learned with: its weights, and a network with all heads."""
        if not isinstance(model, Classifier):
            kind = type(model).__name__
            raise SpecError(f"metareg takes a Classifier, features and a head; {kind} is none")
        # All heads are one layer, a block of its outputs each: it is drawn as each would be.
        base = task.network(len(task.sources) * len(task.classes))
        learner = Learner(model, task, parts={"base": base})
        learner.memory["phi"] = torch.zeros_like(_joined(model.head.weight, model.head.bias))
        return learner

    def loss(self, learner: Learner, batches: Batches) -> tuple[Tensor, Logs]:
        """Mean loss over all samples and the learned penalty on the head."""
        pooled, head = pool(batches), cast(Classifier, learner.model).head
        penalty = _penalty(learner.memory["phi"], _joined(head.weight, head.bias))
        loss = F.cross_entropy(learner.model(pooled.x), pooled.y) + penalty
        return loss, {"penalty": penalty.detach()}

    def update(self, learner: Learner, batches: Batches) -> Logs:
        """A step of learning the regulariser, or of training with it."""
        # Rounded down: the fresh network gets a step at least.
        if learner.step < int(self.meta_share * learner.task.steps):
            return self._learned(learner, batches)
        return super().update(learner, batches)

    def _learned(self, learner: Learner, batches: Batches) -> Logs:
        """A step on the regulariser, then one on the networks that it is learned with."""
        self.check(len(batches))
        base, pooled = cast(Classifier, learner.parts["base"]), pool(batches)
        each = (len(learner.task.sources), len(learner.task.classes))
        features = base.features(pooled.x)
        logits = base.head(features).unflatten(1, each)
        own = logits[torch.arange(len(logits), device=logits.device), pooled.domain]
        a, b = torch.randperm(len(batches))[:2].tolist()
        passed = features.detach().split([len(batch.y) for batch in batches])
        # A slice, not a number: to read that off the device would make it wait.
        one = batches[a].domain[:1]
        heads = (part.detach().unflatten(0, each)[one][0] for part in base.head.parameters())
        phi = learner.memory["phi"].detach().requires_grad_()
        beta = self._adapted(
            learner,
            phi,
            _joined(*heads),
            passed[a],
            batches[a].y,
        )
        unseen = F.cross_entropy(_scores(passed[b], beta), batches[b].y)
        (slope,) = learner.gradients(unseen, [phi])
        learner.memory["phi"] = phi.detach() - self.meta_rate * slope
        loss = F.cross_entropy(own, pooled.y)
        learner.descend(loss)
        size = learner.memory["phi"].abs().mean()
        return {"base_loss": loss.detach(), "unseen": unseen.detach(), "phi": size}

    def _adapted(
        self, learner: Learner, phi: Tensor, beta: Tensor, features: Tensor, y: Tensor
    ) -> Tensor:
        """A head after some regularised steps on a domain, as a function of φ."""
        beta = beta.requires_grad_()
        for _ in range(self.inner_steps):
            loss = F.cross_entropy(_scores(features, beta), y) + _penalty(phi, beta)
            (slope,) = learner.gradients(loss, [beta], create_graph=True)
            beta = beta - self.inner_rate * learner.lr * slope
        return beta


def _joined(weight: Tensor, bias: Tensor) -> Tensor:
    """A head as one matrix, its last column the bias."""
    return torch.cat([weight, bias[:, None]], dim=1)


def _scores(features: Tensor, head: Tensor) -> Tensor:
    """The logits that such a head gives."""
    return F.linear(features, head[:, :-1], head[:, -1])


def _penalty(phi: Tensor, head: Tensor) -> Tensor:
    """R_φ of a head."""
    return (phi * head.abs()).sum()
