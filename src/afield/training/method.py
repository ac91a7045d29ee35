"""What a method is: frozen hyperparameters, and what one training step does with them.

A method holds no state. What changes during training is in the `Learner`: the model, further
networks (`parts`), the optimiser, further optimisers and a `memory` of tensors; all of it goes into
a snapshot.
Methods draw random numbers from torch's generators only, and log detached tensors, never floats:
reading a number off the device inside a step would make the device wait.
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
    """All that a method may know of what is asked; of the target it knows nothing.

    `network` makes a further network with so many outputs, `optimizer` an optimiser for parameters
    or groups of them, with the run's settings unless others are given as keywords; `shape` is that
    of a sample as the network sees it. `schedule` gives the share of the learning rate at a step,
    and `clip_norm` the greatest length of a gradient (0: any).
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

    `rates` are learning rates of their own for parts of the model, as multiples of the run's.
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
        """What is trained, of the model and of its parts."""
        both = (*self.model.parameters(), *self.parts.parameters())
        return [parameter for parameter in both if parameter.requires_grad]

    @property
    def lr(self) -> float:
        """Learning rate of the run at this step."""
        lr: float = self.optimizer.param_groups[0]["lr"]
        return lr

    @property
    def initial_lr(self) -> float:
        """The learning rate of the run before any schedule."""
        group = self.optimizer.param_groups[0]
        rate: float = group.get("first_lr", group["lr"])
        return rate

    def reset_optimizer(self) -> None:
        """Start the optimiser afresh, without its memory of earlier gradients."""
        groups = [[*self.model.get_submodule(name).parameters()] for name in self.lr_multipliers]
        apart = {id(parameter) for group in groups for parameter in group}
        groups.insert(0, [each for each in self.parameters() if id(each) not in apart])
        self.optimizer = self.task.optimizer([{"params": group} for group in groups])
        for group, rate in zip(
            self.optimizer.param_groups, (1.0, *self.lr_multipliers.values()), strict=True
        ):
            group["lr"] *= rate
        if self.task.schedule is not None:
            self.apply_schedule()

    def scale_lr(self, *shares: float) -> None:
        """Set learning rates to a share of what they are at first, each in the order of `rates`."""
        for group, share in zip(self.optimizer.param_groups, shares, strict=True):
            group["share"] = share
        self.apply_schedule()

    def apply_schedule(self) -> None:
        """Set learning rates to what the run's schedule and the method's pace have at this step."""
        share = 1.0 if self.task.schedule is None else self.task.schedule(self.step)
        for optimizer in (self.optimizer, *self.optimizers.values()):
            for group in optimizer.param_groups:
                first = group.setdefault("first_lr", group["lr"])
                group["lr"] = share * group.get("share", 1.0) * first

    def step_optimizer(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        """One step of the optimiser, or of another, along the gradients that are there."""
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
        """A slope of zeros to add gradients to, in the memory of the last ones if there are any.

        It has the memory layout of the parameters, which fused optimisers count on.
        """
        slope = []
        for parameter in self.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            slope.append(parameter.grad)
        torch._foreach_zero_(slope)
        return slope

    def apply_gradients(self, slope: Sequence[Tensor]) -> None:
        """One step of the optimiser along a slope that was begun with `level`."""
        for parameter, gradient in zip(self.parameters(), slope, strict=True):
            parameter.grad = gradient
        self.step_optimizer()

    def train(self) -> None:
        """Put the networks in training mode."""
        self.model.train()
        self.parts.train()

    def state_dict(self) -> dict[str, Any]:
        """The whole state."""
        return {
            "model": self.model.state_dict(),
            "parts": self.parts.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "optimizers": {name: each.state_dict() for name, each in self.optimizers.items()},
            "memory": self.memory,
            "step": self.step,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to a saved state."""
        self.model.load_state_dict(state["model"])
        self.parts.load_state_dict(state["parts"])
        self.reset_optimizer()
        self.optimizer.load_state_dict(state["optimizer"])
        for name, each in self.optimizers.items():
            each.load_state_dict(state["optimizers"][name])
        device = next(self.model.parameters()).device
        self.memory = {name: value.to(device) for name, value in state["memory"].items()}
        self.step = state["step"]


@dataclass(frozen=True)
class Method:
    """A training algorithm. Most methods override `loss` and nothing else."""

    @property
    def batches_per_group(self) -> int:
        """How often a run's batch one step takes from every group, in one; mostly once."""
        return 1

    def check(self, domains: int) -> None:
        """Override to refuse, with a `SpecError`, steps over so many source domains."""

    def setup(self, model: nn.Module, task: Task) -> Learner:
        """Override to add networks, masks or buffers."""
        return Learner(model, task)

    def regroup(
        self, learner: Learner, samples: Samples
    ) -> Sequence[Sequence[int] | Tensor] | None:
        """Override to draw batches from other groups than the source domains, from now on."""
        del learner, samples
        return None

    def loss(self, learner: Learner, batches: Batches) -> tuple[Tensor, Logs]:
        """What to minimise: one batch from each group, in the order of the groups."""
        raise NotImplementedError(f"{type(self).__name__} overrides neither loss nor update")

    def update(self, learner: Learner, batches: Batches) -> Logs:
        """One training step; override when it is more than one descent."""
        loss, logs = self.loss(learner, batches)
        learner.descend(loss)
        return {"loss": loss.detach(), **logs}


def pool(batches: Batches) -> Batch:
    """All batches as one."""
    return Batch(*(torch.cat(parts) for parts in zip(*batches, strict=True)))


def origins(batches: Batches) -> Tensor:
    """The group of every batch: a step may draw from some of many groups only."""
    return torch.stack([batch.group[0] for batch in batches])


def risks(model: nn.Module, batches: Batches) -> Tensor:
    """Mean loss of every batch, from one forward pass over all of them."""
    pooled = pool(batches)
    losses = F.cross_entropy(model(pooled.x), pooled.y, reduction="none")
    sizes = [len(batch.y) for batch in batches]
    if len(set(sizes)) == 1:
        return losses.view(len(sizes), -1).mean(dim=1)
    return torch.stack([part.mean() for part in losses.split(sizes)])
