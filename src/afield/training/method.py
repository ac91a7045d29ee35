"""What a method is: frozen hyperparameters, and one training step that uses them.

A method has no state. Everything that changes during training is in the `Learner`: the model,
additional networks (`parts`), the optimizer, additional optimizers and a `memory` of tensors. All
of it is saved in snapshots.

Methods draw random numbers from torch's generators only. They log detached tensors, never floats,
because reading a number off the device within a step would make the device wait.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from afield.data.samples import Batch, Samples

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
class Task:
    """Everything that a method may know about a run; nothing about the target is in it.

    Attributes
    ----------
    sources, classes
        Names of the source domains and of the classes.
    steps
        Number of training steps.
    network
        Builds another network of the run's kind with the given number of outputs.
    optimizer
        Builds an optimizer for parameters or parameter groups. It has the run's settings, unless
        keywords override them.
    shape
        Shape of a sample as the network sees it.
    schedule
        Factor of the learning rate at a step; None means constant.
    clip_norm
        Greatest norm of a gradient; 0 means unlimited.
    """

    sources: tuple[str, ...]
    classes: tuple[str, ...]
    steps: int
    network: Callable[[int], nn.Module]
    optimizer: Callable[..., torch.optim.Optimizer]
    shape: tuple[int, ...] = ()
    schedule: Callable[[int], float] | None = None
    clip_norm: float = 0.0


class Learner:
    """Everything that changes during training.

    Parameters
    ----------
    model, task
        The network to train, and what is known about the run.
    parts
        Additional networks, which are trained with the model.
    lr_multipliers
        Learning rates of submodules of the model, as multiples of the run's learning rate.
    """

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        parts: Mapping[str, nn.Module] | None = None,
        lr_multipliers: Mapping[str, float] | None = None,
    ) -> None:
        self.model = model
        self.task = task
        self.lr_multipliers = dict(lr_multipliers or {})
        self.parts = nn.ModuleDict(dict(parts or {})).to(next(model.parameters()).device)
        self.memory: dict[str, Tensor] = {}
        self.optimizers: dict[str, torch.optim.Optimizer] = {}
        self.step = 0
        self.reset_optimizer()

    def parameters(self) -> list[nn.Parameter]:
        """Parameters of the model and of its parts that are trained."""
        parameters = (*self.model.parameters(), *self.parts.parameters())
        return [parameter for parameter in parameters if parameter.requires_grad]

    @property
    def lr(self) -> float:
        """Learning rate of the run at this step."""
        lr: float = self.optimizer.param_groups[0]["lr"]
        return lr

    @property
    def initial_lr(self) -> float:
        """Learning rate of the run before any schedule."""
        group = self.optimizer.param_groups[0]
        lr: float = group.get("first_lr", group["lr"])
        return lr

    def reset_optimizer(self) -> None:
        """Replace the optimizer by a new one, without statistics of earlier gradients."""
        groups = [[*self.model.get_submodule(name).parameters()] for name in self.lr_multipliers]
        grouped = {id(parameter) for group in groups for parameter in group}
        groups.insert(0, [p for p in self.parameters() if id(p) not in grouped])
        self.optimizer = self.task.optimizer([{"params": group} for group in groups])
        multipliers = (1.0, *self.lr_multipliers.values())
        for group, multiplier in zip(self.optimizer.param_groups, multipliers, strict=True):
            group["lr"] *= multiplier
        if self.task.schedule is not None:
            self.apply_schedule()

    def scale_lr(self, *factors: float) -> None:
        """Scale the initial learning rates by one factor each, in the order of parameter groups.

        The first group has the parameters without a multiplier; the other groups follow in the
        order of `lr_multipliers`. The run's schedule applies on top.
        """
        for group, factor in zip(self.optimizer.param_groups, factors, strict=True):
            group["share"] = factor
        self.apply_schedule()

    def apply_schedule(self) -> None:
        """Set the learning rates of this step from the run's schedule and from `scale_lr`."""
        factor = 1.0 if self.task.schedule is None else self.task.schedule(self.step)
        for optimizer in (self.optimizer, *self.optimizers.values()):
            for group in optimizer.param_groups:
                initial = group.setdefault("first_lr", group["lr"])
                group["lr"] = factor * group.get("share", 1.0) * initial

    def step_optimizer(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Clip the gradients that the parameters have, and step the optimizer, or another one."""
        if self.task.clip_norm:
            nn.utils.clip_grad_norm_(self.parameters(), self.task.clip_norm)
        (optimizer or self.optimizer).step()

    def gradients(
        self,
        loss: Tensor,
        tensors: Sequence[Tensor] | None = None,
        *,
        create_graph: bool = False,
    ) -> list[Tensor]:
        """Gradients of a loss with respect to the trained parameters, or to other tensors.

        A tensor on which the loss does not depend has a gradient of zeros. With `create_graph`,
        the gradients can be differentiated again.
        """
        tensors = self.parameters() if tensors is None else tensors
        return list(
            torch.autograd.grad(loss, tensors, create_graph=create_graph, materialize_grads=True)
        )

    def accumulate_gradients(self, loss: Tensor) -> None:
        """Add the gradients of a loss to `grad` of every tensor on which it depends."""
        loss.backward()

    def descend(self, loss: Tensor, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Minimize a loss by one step of the run's optimizer, or of another one."""
        optimizer = optimizer or self.optimizer
        optimizer.zero_grad()
        self.accumulate_gradients(loss)
        self.step_optimizer(optimizer)

    def zero_gradients(self) -> list[Tensor]:
        """Return gradients of zeros, to which a method can add; earlier gradients are overwritten.

        They have the memory layout of the parameters, which fused optimizers rely on.
        """
        gradients = []
        for parameter in self.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            gradients.append(parameter.grad)
        torch._foreach_zero_(gradients)
        return gradients

    def apply_gradients(self, gradients: Sequence[Tensor]) -> None:
        """Step the optimizer along gradients that `zero_gradients` returned."""
        for parameter, gradient in zip(self.parameters(), gradients, strict=True):
            parameter.grad = gradient
        self.step_optimizer()

    def train(self) -> None:
        """Set all networks to training mode."""
        self.model.train()
        self.parts.train()

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state."""
        return {
            "model": self.model.state_dict(),
            "parts": self.parts.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "optimizers": {name: other.state_dict() for name, other in self.optimizers.items()},
            "memory": self.memory,
            "step": self.step,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        self.model.load_state_dict(state["model"])
        self.parts.load_state_dict(state["parts"])
        self.reset_optimizer()
        self.optimizer.load_state_dict(state["optimizer"])
        for name, other in self.optimizers.items():
            other.load_state_dict(state["optimizers"][name])
        device = next(self.model.parameters()).device
        self.memory = {name: value.to(device) for name, value in state["memory"].items()}
        self.step = state["step"]


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
