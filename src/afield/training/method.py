"""What a method is: frozen hyperparameters, and one training step that uses them.

A method has no state. Everything that changes during training is in the `Learner`: the model,
additional networks (`parts`), the optimizer, additional optimizers and a `memory` of tensors. All
of it is saved in snapshots.

Methods draw random numbers from torch's generators only. They log detached tensors, never floats,
because reading a number off the device within a step would make the device wait.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from afield.data.samples import Batch, Samples
from afield.training.learner import Learner
from afield.training.task import Task

__all__ = [
    "Batch",
    "Batches",
    "Learner",
    "Logs",
    "Method",
    "Samples",
    "Task",
    "origins",
    "pool",
    "risks",
]

Batches = Sequence[Batch]
Logs = Mapping[str, Tensor]


@dataclass(frozen=True)
class Method:
    """A training algorithm. Most methods override only `loss`."""

    @property
    def batches_per_group(self) -> int:
        """How many batches per group one step consumes; 1 for most methods."""
        return 1

    def check(self, domains: int) -> None:
        """Override to raise `SpecError` if a step cannot use this number of source domains."""

    def setup(self, model: nn.Module, task: Task) -> Learner:
        """Return the state to train; override to add networks, masks or buffers."""
        return Learner(model, task)

    def regroup(
        self, learner: Learner, samples: Samples
    ) -> Sequence[Sequence[int] | Tensor] | None:
        """Override to draw batches from groups other than the source domains.

        Called before every step. Returns the indices of each group's samples, or None to keep the
        present groups.
        """
        del learner, samples
        return None

    def loss(self, learner: Learner, batches: Batches) -> tuple[Tensor, Logs]:
        """Return the loss to minimize and what to log; `batches` has one batch per group."""
        raise NotImplementedError(f"{type(self).__name__} overrides neither loss nor update")

    def update(self, learner: Learner, batches: Batches) -> Logs:
        """Do one training step; override if it is more than one descent on `loss`."""
        loss, logs = self.loss(learner, batches)
        learner.descend(loss)
        return {"loss": loss.detach(), **logs}


def pool(batches: Batches) -> Batch:
    """Concatenate all batches to one."""
    return Batch(*(torch.cat(column) for column in zip(*batches, strict=True)))


def origins(batches: Batches) -> Tensor:
    """Index of each batch's group; a step may draw from only some of many groups."""
    return torch.stack([batch.group[0] for batch in batches])


def risks(model: nn.Module, batches: Batches) -> Tensor:
    """Mean loss of each batch, computed in one forward pass over all batches."""
    pooled = pool(batches)
    losses = F.cross_entropy(model(pooled.x), pooled.y, reduction="none")
    sizes = [len(batch.y) for batch in batches]
    if len(set(sizes)) == 1:
        return losses.view(len(sizes), -1).mean(dim=1)
    return torch.stack([batch_losses.mean() for batch_losses in losses.split(sizes)])
