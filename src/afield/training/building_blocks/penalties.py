"""What methods with a penalty share: terms of the loss, warm-ups, and checks of settings.

A warm-up is a share of the run, so that a penalty takes effect in short runs too.
"""

from abc import abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from afield.errors import SpecError
from afield.hyperparameters import LogUniform, Uniform
from afield.training.building_blocks.forward import Outputs, forward
from afield.training.building_blocks.head_derivatives import loss_slopes
from afield.training.learner import Learner
from afield.training.method import Batches, Logs, Method


@dataclass(frozen=True)
class WarmPenalty(Method):
    """Mean risk plus a penalty, which has another weight during the warm-up.

    `warmup` is a share of the steps, and `first_weight` the weight of the penalty until then. The
    optimizer is reset when the warm-up ends.
    """

    penalty: Annotated[float, LogUniform(0.1, 1e5)] = 100.0
    warmup: Annotated[float, Uniform(0.0, 0.5)] = 0.1

    first_weight: ClassVar[float]
    # What the logs call the term.
    term_name: ClassVar[str] = "penalty"
    min_batch = 2

    def __post_init__(self) -> None:
        check_settings(self, not_negative=["penalty"], shares=["warmup"])

    @abstractmethod
    def term(self, outputs: Outputs) -> Tensor:
        """The penalty, without its weight."""

    def loss(self, learner: Learner, batches: Batches) -> tuple[Tensor, Logs]:
        """Mean risk plus the weighted penalty."""
        return self.penalized(learner, forward(learner, batches))

    def penalized(self, learner: Learner, outputs: Outputs) -> tuple[Tensor, Logs]:
        """The same, from the outputs of the network."""
        weight = self.penalty if finish_warm_up(learner, self.warmup) else self.first_weight
        risk, term = outputs.risks.mean(), self.term(outputs)
        logs = {"risk": risk.detach(), self.term_name: term.detach()}
        return risk + weight * term, logs


def finish_warm_up(learner: Learner, share: float, *, lr_factor: float = 1.0) -> bool:
    """Reset the optimizer at the first step after the warm-up; return whether it has ended.

    The warm-up is a share of the run. The statistics of the optimizer belong to another loss; from
    its reset on, learning rates are multiplied by `lr_factor`.
    """
    start = round(share * learner.task.steps)
    if learner.step == start:
        learner.reset_optimizer()
        if lr_factor != 1:
            learner.scale_lr(*[lr_factor] * len(learner.optimizer.param_groups))
    return learner.step >= start


def check_settings(
    method: Method, *, not_negative: Collection[str] = (), shares: Collection[str] = ()
) -> None:
    """Raise `SpecError` for a negative setting, or for a share outside 0 to 1."""
    for setting in not_negative:
        if getattr(method, setting) < 0:
            value = getattr(method, setting)
            raise SpecError(f"{method.name}.{setting}={value:g}: must not be below 0")
    for setting in shares:
        if not 0 <= getattr(method, setting) <= 1:
            value = getattr(method, setting)
            raise SpecError(f"{method.name}.{setting}={value:g}: must be from 0 to 1")


def scale_penalty(outputs: Outputs) -> Tensor:
    """IRM's penalty: mean over the domains of the product of two halves' derivatives.

    The derivatives are those of the mean loss with respect to a scale of the logits, over the
    samples at even and at odd places.
    """
    slopes = (loss_slopes(outputs.logits, outputs.y) * outputs.logits).sum(dim=1)
    domains = outputs.by_domain(slopes)
    return torch.stack([own[::2].mean() * own[1::2].mean() for own in domains]).mean()


def feature_variance(outputs: Outputs) -> Tensor:
    """IB-ERM's penalty: mean over domains and features of the variance within a domain."""
    domains = outputs.by_domain(outputs.features)
    return torch.stack([own.var(dim=0).mean() for own in domains]).mean()
