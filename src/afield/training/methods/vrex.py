"""V-REx: the risks of the source domains should be equal (Krueger et al., 2021).

    loss = mean(risks) + penalty · var(risks)

Differs from the paper: as in DomainBed, the penalty is 1 during the warm-up, and the optimizer is
reset when the warm-up ends. Differs from DomainBed: the warm-up is a share of the run, so that the
penalty takes effect in short runs too; a tenth is DomainBed's 500 of 5,000 steps.
"""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field
from torch import Tensor

from afield.hyperparameters import LogUniform, Uniform
from afield.training.building_blocks.penalties import finish_warm_up
from afield.training.learner import Learner
from afield.training.method import Batches, Logs, Method, risks

__all__ = ["VREx"]


@dataclass(frozen=True)
class VREx(Method):
    """Variance risk extrapolation; `penalty` is the paper's β, `warmup` is a share of the steps."""

    penalty: Annotated[float, LogUniform(0.1, 1e5)] = 10.0
    warmup: Annotated[float, Uniform(0.0, 0.5), Field(le=1)] = 0.1

    def loss(self, learner: Learner, batches: Batches) -> tuple[Tensor, Logs]:
        """Mean risk plus the weighted variance of the risks."""
        weight = self.penalty if finish_warm_up(learner, self.warmup) else 1.0
        risk = risks(learner.model, batches)
        variance = risk.var(correction=0)
        return risk.mean() + weight * variance, {"variance": variance.detach()}
