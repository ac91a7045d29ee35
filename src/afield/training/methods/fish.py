"""Fish: step on each domain in turn, then move part of the way to the result (Shi et al., 2022).

    θ̃: one optimizer step on each domain from Θ;   Θ ← Θ + meta_lr · (θ̃ - Θ)

The default is DomainBed's form: the inner loop uses the run's optimizer (Adam), which keeps its
state from one step to the next, the order of the domains is fixed, and BatchNorm statistics move
part of the way too. `inner=sgd` is the form with which Arith is compared: plain gradient steps in a
random order, all with the weight `meta_lr` (see `afield.training.inner_loop`).

Differs from the paper: every step uses all domains instead of a random few, and there is no
training without Fish before it. Differs from DomainBed: nothing; counters in buffers are those of
the inner loop.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import nn

from afield.errors import SpecError
from afield.hyperparameters import LogUniform, Variant
from afield.tensors import clone_tensors, mix
from afield.training.inner_loop import InnerLoop, Outer
from afield.training.learner import Learner, Task
from afield.training.method import Batches, Logs

__all__ = ["Fish"]


@dataclass(frozen=True)
class Fish(InnerLoop):
    """Gradient matching; the inner loop uses the run's `optimizer` or plain `sgd`."""

    inner_rate: Annotated[float, Variant((0.1, 1.0, 10.0))] = 1.0
    meta_lr: Annotated[float, LogUniform(0.05, 1.0)] = 0.5
    inner: Annotated[Literal["optimizer", "sgd"], Variant(("sgd", "optimizer"))] = "optimizer"
    outer: Annotated[Outer, Variant(("plain", "raw", "divided"))] = "plain"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.meta_lr < 0:
            raise SpecError(f"fish.meta_lr={self.meta_lr:g}: must not be below 0")
        if self.inner == "optimizer" and (self.outer != "plain" or self.momentum):
            raise SpecError("fish.outer and fish.momentum need fish.inner=sgd")

    def setup(self, model: nn.Module, task: Task) -> Learner:
        """Add the optimizer of the inner loop, which keeps its state."""
        learner = super().setup(model, task)
        if self.inner == "optimizer":
            lr = self.inner_rate * learner.initial_lr
            learner.optimizers["inner"] = task.optimizer(learner.parameters(), lr=lr)
        return learner

    def weights(self, n: int) -> Sequence[float]:
        """The same weight for all domains."""
        return [self.meta_lr] * n

    def update(self, learner: Learner, batches: Batches) -> Logs:
        """Run the inner loop, then move part of the way back."""
        if self.inner == "sgd":
            return super().update(learner, batches)
        buffers = [buffer for buffer in learner.model.buffers() if buffer.is_floating_point()]
        moved = [*learner.parameters(), *buffers]
        start, optimizer = clone_tensors(moved), learner.optimizers["inner"]
        losses = []
        for domain_batches in self.rounds(batches, shuffle=False):
            for batch in domain_batches:
                loss = F.cross_entropy(learner.model(batch.x), batch.y)
                learner.descend(loss, optimizer)
                losses.append(loss.detach())
        mix(moved, start, share=1 - self.meta_lr)
        return {"loss": torch.stack(losses).mean()}
