"""The state of training: the model, its additional networks, optimizers and memory.

A `Learner` trains the model and its parts with one optimizer, the run's. Some methods need more:

    separate    parts that the run's optimizer leaves alone, because they take turns with the model,
                have a learning rate of their own, or are not trained by gradients
    frozen      parts that stay as they are: never trained, always in evaluation mode
    optimizers  additional optimizers, added with `add_optimizer`

All of it is saved in snapshots.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from afield.errors import SpecError
from afield.networks.backbone import Classifier


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
    scales_loss
        Whether losses are scaled up for backward passes in float16, whose small numbers are coarse.
    pretrained
        Whether the network starts from weights that were trained before.
    rates
        Factors of the learning rate by the identity of the parameters of a model; None means that
        all parameters have the run's rate.
    """

    sources: tuple[str, ...]
    classes: tuple[str, ...]
    steps: int
    network: Callable[[int], nn.Module]
    optimizer: Callable[..., torch.optim.Optimizer]
    shape: tuple[int, ...] = ()
    schedule: Callable[[int], float] | None = None
    clip_norm: float = 0.0
    scales_loss: bool = False
    pretrained: bool = True
    rates: Callable[[nn.Module], Mapping[int, float]] | None = None


# As in torch.amp.GradScaler: the first scale, and the number of finite steps until it is doubled.
FIRST_SCALE, STEPS_UNTIL_DOUBLED = 2.0**16, 2000


class LossScale:
    """The scale of a loss, and the number of finite steps with it."""

    def __init__(self) -> None:
        self.scale = FIRST_SCALE
        self.finite_steps = 0

    def gradients(
        self, loss: Tensor, tensors: Sequence[Tensor], *, create_graph: bool = False
    ) -> list[Tensor]:
        """Gradients of a loss with respect to tensors, without the scale."""
        scaled = torch.autograd.grad(
            self.scale * loss, tensors, create_graph=create_graph, materialize_grads=True
        )
        return [gradient / self.scale for gradient in scaled]

    def accumulate(self, loss: Tensor, leaves: Sequence[Tensor] | None = None) -> None:
        """Add the gradients of a loss to `grad` of the given leaves, or of all it depends on."""
        leaves = _leaves(loss) if leaves is None else leaves
        for leaf, gradient in zip(leaves, self.gradients(loss, leaves), strict=True):
            leaf.grad = gradient if leaf.grad is None else leaf.grad.add_(gradient)

    def accepts(self, gradients: Iterable[Tensor | None]) -> bool:
        """Whether all gradients are finite, so that a step may use them; adapts the scale."""
        norms = torch._foreach_norm([gradient for gradient in gradients if gradient is not None])
        finite = bool(torch.stack(norms).isfinite().all()) if norms else True
        self.finite_steps = self.finite_steps + 1 if finite else 0
        if not finite:
            self.scale /= 2
        elif self.finite_steps == STEPS_UNTIL_DOUBLED:
            self.scale, self.finite_steps = 2 * self.scale, 0
        return finite

    def state_dict(self) -> dict[str, float]:
        """The scale and the number of steps."""
        return {"scale": self.scale, "finite_steps": self.finite_steps}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Restore a saved state."""
        self.scale, self.finite_steps = state["scale"], int(state["finite_steps"])


def _leaves(loss: Tensor) -> list[Tensor]:
    """The tensors with gradients on which a loss depends, in a fixed order."""
    leaves, seen, waiting = [], set(), [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            leaves.append(node.variable)
        waiting += [following for following, _ in node.next_functions]
    return leaves


def require_classifier(model: nn.Module, method: str, *, own_head: bool = False) -> Classifier:
    """Return the model, or raise `SpecError` unless it has features and a head.

    With `own_head`, the method replaces the head, so a frozen one is refused too.
    """
    if not isinstance(model, Classifier):
        kind = type(model).__name__
        raise SpecError(f"{method} needs a Classifier (features and a head), not {kind}")
    if own_head and not model.head.weight.requires_grad:
        raise SpecError(f"{method} trains a head of its own, but the network's head is frozen")
    return model


def perceptron(
    *widths: int, activation: type[nn.Module] = nn.ReLU, **options: Any
) -> nn.Sequential:
    """Linear layers with activations in between; the indices of layers are even."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), activation(**options)]
    return nn.Sequential(*layers[:-1])


def sample_of_zeros(model: nn.Module, task: Task) -> Tensor:
    """One sample, with which to find the stages of the model."""
    like = next(model.parameters())
    return torch.zeros(1, *task.shape, device=like.device, dtype=like.dtype)


class Learner:
    """Everything that changes during training.

    Parameters
    ----------
    model, task
        The network to train, and what is known about the run.
    parts
        Additional networks, which are trained with the model unless they are separate or frozen.
    lr_multipliers
        Learning rates of submodules of the model, as multiples of the run's learning rate. The
        name of a part is written ``parts.NAME``.
    separate
        Names of parts that the run's optimizer does not train.
    frozen
        Names of parts that nothing trains; they stay in evaluation mode.
    settings
        Settings of the run's optimizer that replace its own, such as ``betas``. An optimizer that
        does not know a setting ignores it.
    layers
        Names of modules of the model whose outputs the method reads or changes.
    """

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        parts: Mapping[str, nn.Module] | None = None,
        lr_multipliers: Mapping[str, float] | None = None,
        *,
        separate: Collection[str] = (),
        frozen: Collection[str] = (),
        settings: Mapping[str, Any] | None = None,
        layers: Sequence[str] = (),
    ) -> None:
        self.model = model
        self.task = task
        self.lr_multipliers = dict(lr_multipliers or {})
        self.parts = nn.ModuleDict(dict(parts or {})).to(next(model.parameters()).device)
        self.separate, self.frozen = frozenset(separate), frozenset(frozen)
        self.settings = dict(settings or {})
        self.layers = tuple(layers)
        for name in frozen:
            self.parts[name].requires_grad_(requires_grad=False)
        self.memory: dict[str, Tensor] = {}
        self.optimizers: dict[str, torch.optim.Optimizer] = {}
        self.loss_scale = LossScale() if task.scales_loss else None
        self.step = 0
        self.reset_optimizer()

    def parameters(self) -> list[nn.Parameter]:
        """Parameters that the run's optimizer trains: those of the model and of its parts."""
        networks = (self.model, *(p for n, p in self.parts.items() if n not in self.separate))
        return _trained(parameter for net in networks for parameter in net.parameters())

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
        groups = [_trained(self._submodule(name).parameters()) for name in self.lr_multipliers]
        grouped = {id(parameter) for group in groups for parameter in group}
        groups.insert(0, [p for p in self.parameters() if id(p) not in grouped])
        rates = self.task.rates(self.model) if self.task.rates else {}
        multipliers = (1.0, *self.lr_multipliers.values())
        pieces = [
            ({"params": part} | ({"owner": number} if rates else {}), factor * multiplier)
            for number, (group, multiplier) in enumerate(zip(groups, multipliers, strict=True))
            for factor, part in _by_rate(group, rates).items()
        ]
        self.optimizer = self.task.optimizer([piece for piece, _ in pieces])
        _override(self.optimizer, self.settings)
        for group, (_, multiplier) in zip(self.optimizer.param_groups, pieces, strict=True):
            group["lr"] *= multiplier
        if self.task.schedule is not None:
            self.apply_schedule()

    def add_optimizer(
        self,
        name: str,
        parameters: Iterable[nn.Parameter],
        *,
        lr_multiplier: float = 1.0,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """Add an optimizer of the run's kind, with a multiple of its learning rate.

        Optimizers step where the method says so, with `descend`. `settings` replace those of the
        run's optimizer, if it knows them.
        """
        lr = lr_multiplier * self.initial_lr
        self.optimizers[name] = self.task.optimizer(_trained(parameters), lr=lr)
        _override(self.optimizers[name], settings or {})
        if self.task.schedule is not None:
            self.apply_schedule()

    def scale_lr(self, *factors: float) -> None:
        """Scale the initial learning rates by one factor each, in the order of parameter groups.

        The first group has the parameters without a multiplier; the other groups follow in the
        order of `lr_multipliers`. The run's schedule applies on top.
        """
        groups = self.optimizer.param_groups
        # Groups are split where layers have rates of their own.
        owners = [group.get("owner", number) for number, group in enumerate(groups)]
        if len(factors) not in (len(groups), len(set(owners))):
            raise ValueError(f"{len(factors)} factors for {len(set(owners))} groups")
        for group, owner in zip(groups, owners, strict=True):
            group["share"] = factors[owner]
        self.apply_schedule()

    def apply_schedule(self) -> None:
        """Set the learning rates of this step from the run's schedule and from `scale_lr`."""
        factor = 1.0 if self.task.schedule is None else self.task.schedule(self.step)
        for optimizer in (self.optimizer, *self.optimizers.values()):
            for group in optimizer.param_groups:
                initial = group.setdefault("first_lr", group["lr"])
                group["lr"] = factor * group.get("share", 1.0) * initial

    def step_optimizer(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Clip the gradients that an optimizer's parameters have, and step it.

        In float16, a step whose gradients are not finite is left out.
        """
        other = optimizer if optimizer is not self.optimizer else None
        if self.loss_scale is not None:
            stepped = _parameters_of(other or self.optimizer)
            if not self.loss_scale.accepts([parameter.grad for parameter in stepped]):
                return
        if self.task.clip_norm:
            parameters = _parameters_of(other) if other else self.parameters()
            nn.utils.clip_grad_norm_(parameters, self.task.clip_norm)
        (other or self.optimizer).step()

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
        if self.loss_scale is not None:
            return self.loss_scale.gradients(loss, tensors, create_graph=create_graph)
        return list(
            torch.autograd.grad(loss, tensors, create_graph=create_graph, materialize_grads=True)
        )

    def accumulate_gradients(
        self, loss: Tensor, parameters: Iterable[nn.Parameter] | None = None
    ) -> None:
        """Add the gradients of a loss to `grad` of every tensor on which it depends.

        If parameters are given, only they get gradients.
        """
        trained = None if parameters is None else _trained(parameters)
        if self.loss_scale is not None:
            self.loss_scale.accumulate(loss, trained)
        elif trained is None:
            loss.backward()
        elif trained:
            loss.backward(inputs=trained)

    def descend(
        self,
        loss: Tensor,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        only: Iterable[nn.Parameter] | None = None,
    ) -> None:
        """Minimize a loss by one step of the run's optimizer, or of another one.

        If `only` is given, the step moves these parameters alone. The others have no gradient, so
        that neither momentum nor weight decay moves them.
        """
        optimizer = optimizer or self.optimizer
        optimizer.zero_grad()
        self.accumulate_gradients(loss, only)
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
        """Set all networks to training mode; frozen parts stay in evaluation mode."""
        self.model.train()
        for name, part in self.parts.items():
            part.train(name not in self.frozen)

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state."""
        return {
            "model": self.model.state_dict(),
            "parts": self.parts.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "optimizers": {name: other.state_dict() for name, other in self.optimizers.items()},
            "memory": self.memory,
            "step": self.step,
            **({"loss_scale": self.loss_scale.state_dict()} if self.loss_scale else {}),
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
        if self.loss_scale is not None:
            self.loss_scale.load_state_dict(state["loss_scale"])

    def _submodule(self, name: str) -> nn.Module:
        """A submodule of the model, or a part if the name begins with ``parts.``."""
        first, _, rest = name.partition(".")
        return (
            self.parts.get_submodule(rest) if first == "parts" else self.model.get_submodule(name)
        )


def _trained(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    return [parameter for parameter in parameters if parameter.requires_grad]


def _by_rate(
    group: Sequence[nn.Parameter], rates: Mapping[int, float]
) -> dict[float, list[nn.Parameter]]:
    """The parameters of a group by their factors; the first factor is 1, perhaps with none."""
    parts: dict[float, list[nn.Parameter]] = {1.0: []}
    for parameter in group:
        parts.setdefault(rates.get(id(parameter), 1.0), []).append(parameter)
    return parts


def _parameters_of(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _override(optimizer: torch.optim.Optimizer, settings: Mapping[str, Any]) -> None:
    """Set those settings that the optimizer knows."""
    known = {name: value for name, value in settings.items() if name in optimizer.defaults}
    for group in optimizer.param_groups:
        group.update(known)
