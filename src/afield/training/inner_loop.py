"""The inner loop that first-order meta-learning methods share.

    θ₁ = Θ;  θᵢ₊₁ = θᵢ - α · (k plain gradient steps on domain π(i));  gᵢ = θᵢ - θᵢ₊₁
    outer step on Σ wᵢ gᵢ / α, from Θ

π is a new random order in every step. A method of this family defines the weights wᵢ. Gradients
are summed as they are computed: as a difference of network weights divided by a small α,
Σ wᵢ gᵢ / α would lose most of its digits. Unfrozen BatchNorm layers keep the statistics that the
inner loop leaves behind. Weight decay belongs to the optimizer; the inner loop has none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from afield.data.samples import Batch
from afield.errors import SpecError
from afield.hyperparameters import LogUniform, Variant
from afield.tensors import add, assign, clone_tensors, mix
from afield.training.learner import Learner
from afield.training.method import Batches, Logs, Method, pool

Outer = Literal["divided", "raw", "plain"]


@dataclass(frozen=True)
class InnerLoop(Method):
    """Hyperparameters of the inner loop, and one training step with it.

    `steps_per_domain` is k; each of these steps has a batch of its own. `inner_rate` is α as a
    multiple of the run's learning rate. `outer` selects the outer step: the run's optimizer gets
    Σ wᵢ gᵢ `divided` by α, or `raw`; with `plain`, Θ ← Θ - Σ wᵢ gᵢ without the optimizer, and so
    without weight decay.

    Two settings are for ablations. With `momentum`, the inner loop follows a moving average of its
    past gradients, which is kept from one step to the next. With `by_domain=false`, every batch is
    a mixture of all domains.
    """

    steps_per_domain: Annotated[int, Variant((1, 2, 3, 5))] = 1
    inner_rate: Annotated[float, LogUniform(0.1, 100.0)] = 1.0
    outer: Annotated[Outer, Variant(("divided", "raw", "plain"))] = "divided"
    momentum: Annotated[float, Variant((0.0, 0.9))] = 0.0
    by_domain: Annotated[bool, Variant((True, False))] = True

    # Whether every domain starts from Θ instead of where the previous domain ended.
    parallel: ClassVar[bool] = False

    def __post_init__(self) -> None:
        name = type(self).__name__.lower()
        if self.steps_per_domain < 1:
            raise SpecError(f"{name}.steps_per_domain={self.steps_per_domain}: must be above 0")
        if self.inner_rate < 0:
            raise SpecError(f"{name}.inner_rate={self.inner_rate:g}: must not be below 0")
        if not 0 <= self.momentum < 1:
            raise SpecError(f"{name}.momentum={self.momentum:g}: must be from 0 to below 1")

    @property
    def batches_per_group(self) -> int:
        """One batch for each inner step on a domain."""
        return self.steps_per_domain

    def weights(self, n: int) -> Sequence[float]:
        """Weights wᵢ of the n domains, in the order in which the inner loop visits them."""
        raise NotImplementedError(f"{type(self).__name__} does not override weights")

    def update(self, learner: Learner, batches: Batches) -> Logs:
        """Run the inner loop, restore Θ, and step along the weighted sum of the gradients."""
        parameters = learner.parameters()
        inner_lr = self.inner_rate * learner.lr
        start = clone_tensors(parameters)
        total = learner.zero_gradients()
        rounds = self.rounds(batches)
        last = rounds[-1][-1]
        losses = []
        for domain_batches, weight in zip(rounds, self.weights(len(rounds)), strict=True):
            for batch in domain_batches:
                loss = F.cross_entropy(learner.model(batch.x), batch.y)
                direction = self._direction(learner, loss, parameters)
                add(total, direction, times=weight)
                if batch is not last:
                    add(parameters, direction, times=-inner_lr)
                losses.append(loss.detach())
            if self.parallel and domain_batches is not rounds[-1]:
                assign(parameters, start)
        assign(parameters, start)
        if self.outer == "plain":
            add(parameters, total, times=-inner_lr)
        else:
            if self.outer == "raw":
                torch._foreach_mul_(total, inner_lr)
            learner.apply_gradients(total)
        return {"loss": torch.stack(losses).mean()}

    def rounds(self, batches: Batches, *, shuffle: bool = True) -> list[list[Batch]]:
        """Batches of each domain; domains are in a random order if `shuffle` is true."""
        n = len(batches)
        if not self.by_domain:
            pooled = pool(batches)
            order = torch.randperm(len(pooled.y), device=pooled.y.device)
            batches = split_batch(Batch(*(column[order] for column in pooled)), n)
        elif shuffle:
            batches = [batches[i] for i in torch.randperm(n).tolist()]
        return [split_batch(batch, self.steps_per_domain) for batch in batches]

    def _direction(
        self, learner: Learner, loss: Tensor, parameters: Sequence[Tensor]
    ) -> Sequence[Tensor]:
        """The gradient, or with momentum the moving average of the inner loop's gradients."""
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
    """Split a batch into `count` batches of about equal size, or fewer if it has fewer samples."""
    columns = [column.tensor_split(min(count, len(batch.y))) for column in batch]
    return [Batch(*row) for row in zip(*columns, strict=True)]
