"""The inner walk that first-order meta-learning shares.

    θ₁ = Θ;  θᵢ₊₁ = θᵢ - α · (k plain gradient steps on domain π(i));  gᵢ = θᵢ - θᵢ₊₁
    outer step on Σ wᵢ gᵢ / α, from Θ

π is a new random order at every step. A method of the family says which weights wᵢ it gives. The
gradients are added up as they come: Σ wᵢ gᵢ / α as a difference of weights, divided by a small α,
would have few digits left. Statistics of BatchNorm layers, where they are not frozen, are those
that the walk leaves behind; weight decay is the optimiser's, the walk has none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from afield.errors import SpecError
from afield.hyperparameters import LogUniform, Variant
from afield.tensors import add, assign, clone_tensors, mix
from afield.training.method import Batch, Batches, Learner, Logs, Method, pool

__all__ = ["InnerLoop", "Outer", "split_batch"]

Outer = Literal["divided", "raw", "plain"]


@dataclass(frozen=True)
class InnerLoop(Method):
    """What a walk can be: its settings, and one step of training with it.

    `steps_per_domain` is k, each step on a batch of its own, and `inner_rate` is α as a multiple of
    the run's learning rate. `outer` says what the run's optimiser is given: Σ wᵢ gᵢ `divided` by α,
    or `raw`; or `plain`: Θ ← Θ - Σ wᵢ gᵢ, without the optimiser and so without weight decay. For
    ablations, a walk may have `momentum` (an average over its past gradients, kept from one step to
    the next), or not go by domain: then every batch is a mixture of all.
    """

    steps_per_domain: Annotated[int, Variant((1, 2, 3, 5))] = 1
    inner_rate: Annotated[float, LogUniform(0.1, 100.0)] = 1.0
    outer: Annotated[Outer, Variant(("divided", "raw", "plain"))] = "divided"
    momentum: Annotated[float, Variant((0.0, 0.9))] = 0.0
    by_domain: Annotated[bool, Variant((True, False))] = True

    # Whether each domain starts from Θ instead of where the one before it ended.
    parallel: ClassVar[bool] = False

    def __post_init__(self) -> None:
        name = type(self).__name__.lower()
        if self.steps_per_domain < 1:
            raise SpecError(f"{name}.steps_per_domain={self.steps_per_domain}: must be above 0")
        if self.inner_rate < 0:
            raise SpecError(f"{name}.inner_rate={self.inner_rate:g}: must not be below 0")
        if not 0 <= self.momentum < 1:
            raise SpecError(f"{name}.momentum={self.momentum:g}: from 0 to below 1")

    @property
    def batches_per_group(self) -> int:
        """As many batches of a domain as there are steps on it."""
        return self.steps_per_domain

    def weights(self, n: int) -> Sequence[float]:
        """The weights wᵢ of a walk over n domains."""
        raise NotImplementedError(f"{type(self).__name__} does not say its weights")

    def update(self, learner: Learner, batches: Batches) -> Logs:
        """Walk over the domains, go back, and step along the weighted sum of what was met."""
        parameters = learner.parameters()
        rate = self.inner_rate * learner.lr
        start = clone_tensors(parameters)
        slope = learner.zero_gradients()
        stages = self.rounds(batches)
        last = stages[-1][-1]
        losses = []
        for stage, weight in zip(stages, self.weights(len(stages)), strict=True):
            for batch in stage:
                loss = F.cross_entropy(learner.model(batch.x), batch.y)
                direction = self._direction(learner, loss, parameters)
                add(slope, direction, times=weight)
                if batch is not last:
                    add(parameters, direction, times=-rate)
                losses.append(loss.detach())
            if self.parallel and stage is not stages[-1]:
                assign(parameters, start)
        assign(parameters, start)
        if self.outer == "plain":
            add(parameters, slope, times=-rate)
        else:
            if self.outer == "raw":
                torch._foreach_mul_(slope, rate)
            learner.apply_gradients(slope)
        return {"loss": torch.stack(losses).mean()}

    def rounds(self, batches: Batches, *, shuffle: bool = True) -> list[list[Batch]]:
        """For each domain its batches; domains come in a random order unless not `mixed`."""
        n = len(batches)
        if not self.by_domain:
            together = pool(batches)
            order = torch.randperm(len(together.y), device=together.y.device)
            shuffled = Batch(*(part[order] for part in together))
            batches = split_batch(shuffled, n)
        elif shuffle:
            batches = [batches[i] for i in torch.randperm(n).tolist()]
        return [split_batch(batch, self.steps_per_domain) for batch in batches]

    def _direction(
        self, learner: Learner, loss: Tensor, parameters: Sequence[Tensor]
    ) -> Sequence[Tensor]:
        """The gradient, or its average over the walk so far."""
        gradient = learner.gradients(loss, parameters)
        if not self.momentum:
            return gradient
        names = [f"velocity.{i}" for i in range(len(parameters))]
        if names[0] not in learner.memory:
            learner.memory |= zip(names, map(torch.zeros_like, parameters), strict=True)
        velocity = [learner.memory[name] for name in names]
        mix(velocity, gradient, share=1 - self.momentum)
        return velocity


def split_batch(batch: Batch, count: int) -> list[Batch]:
    """A batch in so many parts, as equal as can be; fewer if it has fewer samples."""
    count = min(count, len(batch.y))
    return [Batch(*parts) for parts in zip(*(p.tensor_split(count) for p in batch), strict=True)]
