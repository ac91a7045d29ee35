"""Fishr: gradients of single samples vary alike in all domains (Ramé et al., 2022).

    v_d = variance over the samples of d of the head's gradients (p - y) [z, 1], entry by entry
    M_d ← memory · M_d + (1 - memory) · v_d,   V_d = M_d / (1 - memory)
    loss = mean cross-entropy over the pooled batch + penalty · mean_d mean of (V_d - mean_d V_d)²

M starts at 0 and is kept up during the warm-up, in which the penalty has no weight; the optimizer
is reset when the warm-up ends. The variances have the divisor m. The division by 1 - memory lets V
grow towards v / (1 - memory) in the first 1 / (1 - memory) steps; the default penalty was chosen
for that.

Differs from the paper: the moving average, which its code has. Differs from the authors' code: the
gradients are computed in closed form, which is exact for a linear head; the warm-up is a share of
the run, and their 1,500 of 5,000 steps are 0.3. If a step draws from some of many domains, each
domain has a memory of its own.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from afield.errors import SpecError
from afield.hyperparameters import LogUniform, Uniform
from afield.training.building_blocks.forward import Outputs, forward
from afield.training.building_blocks.head_derivatives import gradient_variance, with_bias
from afield.training.building_blocks.penalties import check_settings, finish_warm_up
from afield.training.learner import Learner
from afield.training.method import Batches, Logs, Method, origins

__all__ = ["Fishr"]


@dataclass(frozen=True)
class Fishr(Method):
    """Invariant gradient variances; `memory` is the share of the past in the moving average."""

    penalty: Annotated[float, LogUniform(10.0, 1e4)] = 1000.0
    warmup: Annotated[float, Uniform(0.0, 1.0)] = 0.3
    memory: Annotated[float, Uniform(0.9, 0.99)] = 0.95

    def __post_init__(self) -> None:
        check_settings(self, not_negative=["penalty"], shares=["warmup", "memory"])
        if self.memory == 1:
            raise SpecError("fishr.memory=1: must be below 1, because nothing would be remembered")

    def loss(self, learner: Learner, batches: Batches) -> tuple[Tensor, Logs]:
        """Mean loss plus the weighted difference of the variances."""
        weight = self.penalty if finish_warm_up(learner, self.warmup) else 0.0
        outputs = forward(learner, batches)
        risk, variances = outputs.risk, self.variances(learner, outputs)
        penalty = (variances - variances.mean(dim=0)).square().mean()
        return risk + weight * penalty, {"risk": risk.detach(), "penalty": penalty.detach()}

    def variances(self, learner: Learner, outputs: Outputs) -> Tensor:
        """Moving averages of the domains' variances; the memory is updated."""
        columns = (with_bias(outputs.features), outputs.logits, outputs.y)
        domains = zip(*(outputs.by_domain(column) for column in columns), strict=True)
        new = torch.stack([gradient_variance(*own) for own in domains])
        shape = (len(learner.task.sources), *new.shape[1:])
        past = learner.memory.get("variances", new.new_zeros(shape))
        origin = origins(outputs.batches)
        mixed = self.memory * past[origin] + (1 - self.memory) * new
        learner.memory["variances"] = past.index_copy(0, origin, mixed.detach())
        return mixed / (1 - self.memory)
