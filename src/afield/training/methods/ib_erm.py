"""IB-ERM: features that vary no more than necessary (Ahuja et al., 2021).

    loss = mean(risks) + penalty · mean_d mean_j var(z_j over the samples of d)

z_j is a feature, and var has the divisor m - 1. The variance of a Gaussian bounds its entropy, so a
small variance is an information bottleneck.

Differs from the paper: as in DomainBed, there is no penalty during the warm-up, and the optimizer
is reset when the warm-up ends; "conditional" variances are those within a domain, over all
classes. Differs from DomainBed: the warm-up is a share of the run; its 500 of 5,000 steps are a
tenth. Its log of the risk contains the penalty; ours does not. A batch of one sample is refused.
"""

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from afield.hyperparameters import LogUniform, Uniform
from afield.training.building_blocks.forward import forward
from afield.training.building_blocks.penalties import check_settings, feature_variance, is_warm
from afield.training.method import Batches, Learner, Logs, Method

__all__ = ["IBERM"]


@dataclass(frozen=True)
class IBERM(Method):
    """Information bottleneck; `warmup` is a share of the steps."""

    penalty: Annotated[float, LogUniform(0.1, 1e5)] = 100.0
    warmup: Annotated[float, Uniform(0.0, 0.5)] = 0.1

    min_batch = 2

    def __post_init__(self) -> None:
        check_settings(self, not_negative=["penalty"], shares=["warmup"])

    def loss(self, learner: Learner, batches: Batches) -> tuple[Tensor, Logs]:
        """Mean risk plus the weighted variance of the features."""
        weight = self.penalty if is_warm(learner, self.warmup) else 0.0
        outputs = forward(learner, batches)
        risk, variance = outputs.risks.mean(), feature_variance(outputs)
        return risk + weight * variance, {"risk": risk.detach(), "variance": variance.detach()}
