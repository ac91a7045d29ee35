"""V-REx: the risks of the source domains should be equal (Krueger et al., 2021).

    loss = mean(risks) + penalty · var(risks)

Differs from the paper: as in DomainBed, the penalty is 1 during the warm-up, and the optimiser
starts afresh when it ends; a run shorter than the warm-up never gets to see `penalty`.
Differs from DomainBed: nothing.
"""

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from afield.method import Batches, Learner, Logs, Method, risks
from afield.space import LogUniform

__all__ = ["VREx"]


@dataclass(frozen=True)
class VREx(Method):
    """Variance-of-risk extrapolation; `penalty` is the paper's β, `warmup` is in steps."""

    penalty: Annotated[float, LogUniform(0.1, 1e5)] = 10.0
    warmup: Annotated[int, LogUniform(1, 1e4)] = 500

    def loss(self, learner: Learner, batches: Batches) -> tuple[Tensor, Logs]:
        """Mean risk plus the weighted variance of the risks."""
        if learner.step == self.warmup:
            learner.reset_optimizer()
        weight = self.penalty if learner.step >= self.warmup else 1.0
        risk = risks(learner.model, batches)
        variance = risk.var(correction=0)
        return risk.mean() + weight * variance, {"variance": variance.detach()}
