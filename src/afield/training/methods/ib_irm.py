"""IB-IRM: IRM with features that vary no more than necessary (Ahuja et al., 2021).

    loss = mean(risks) + penalty · IRM's penalty + bottleneck · IB-ERM's variance of the features

See `irm` and `ib_erm` for the two terms. IRM's penalty has the weight 1 during its warm-up; the
variance has the weight 0 during its own. The optimizer is reset at the end of either warm-up.

Differs from the paper, and from DomainBed: as `irm` and `ib_erm` do.
"""

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from afield.hyperparameters import LogUniform, Uniform
from afield.training.building_blocks.forward import forward
from afield.training.building_blocks.penalties import (
    check_settings,
    feature_variance,
    finish_warm_up,
)
from afield.training.learner import Learner
from afield.training.method import Batches, Logs
from afield.training.methods.irm import IRM

__all__ = ["IBIRM"]


@dataclass(frozen=True)
class IBIRM(IRM):
    """Information bottleneck and IRM; both warm-ups are shares of the steps."""

    bottleneck: Annotated[float, LogUniform(0.1, 1e5)] = 100.0
    bottleneck_warmup: Annotated[float, Uniform(0.0, 0.5)] = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_settings(self, not_negative=["bottleneck"], shares=["bottleneck_warmup"])

    def loss(self, learner: Learner, batches: Batches) -> tuple[Tensor, Logs]:
        """Mean risk plus both weighted penalties."""
        outputs = forward(learner, batches)
        loss, logs = self.penalized(learner, outputs)
        weight = self.bottleneck if finish_warm_up(learner, self.bottleneck_warmup) else 0.0
        variance = feature_variance(outputs)
        return loss + weight * variance, {**logs, "variance": variance.detach()}
