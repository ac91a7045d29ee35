"""CORAL: features with the same means and covariances in all domains (Sun & Saenko, 2016).

    loss = mean(risks) + penalty · mean over pairs (a, b) of domains of
           [mean_j (μ_a - μ_b)_j² + mean_jk (C_a - C_b)_jk²]

μ and C are the mean and the covariance of the features of a domain. With one source domain, or
without a penalty, it is ERM on the mean of the risks.

Differs from the paper: all pairs of source domains instead of a source and the target; means count
beside covariances, which are divided by k² instead of 4 k². Differs from DomainBed: nothing; the
mean over pairs is computed without visiting the pairs.
"""

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from afield.hyperparameters import LogUniform
from afield.training.building_blocks.feature_distances import moment_distance
from afield.training.building_blocks.forward import Outputs, forward
from afield.training.building_blocks.penalties import check_settings
from afield.training.learner import Learner
from afield.training.method import Batches, Logs, Method

__all__ = ["CORAL"]


@dataclass(frozen=True)
class CORAL(Method):
    """Correlation alignment; `penalty` is the weight of the distance between domains."""

    penalty: Annotated[float, LogUniform(0.1, 10.0)] = 1.0

    min_batch = 2

    def __post_init__(self) -> None:
        check_settings(self, not_negative=["penalty"])

    def distance(self, outputs: Outputs) -> Tensor:
        """Mean distance of the domains' features over all pairs."""
        return moment_distance(outputs.by_domain(outputs.features))

    def loss(self, learner: Learner, batches: Batches) -> tuple[Tensor, Logs]:
        """Mean risk plus the weighted distance."""
        outputs = forward(learner, batches)
        risk, distance = outputs.risks.mean(), self.distance(outputs)
        logs = {"risk": risk.detach(), "distance": distance.detach()}
        return risk + self.penalty * distance, logs
