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
from typing import ClassVar

from torch import Tensor

from afield.training.building_blocks.forward import Outputs
from afield.training.building_blocks.penalties import WarmPenalty, feature_variance

__all__ = ["IBERM"]


@dataclass(frozen=True)
class IBERM(WarmPenalty):
    """Information bottleneck; `warmup` is a share of the steps."""

    first_weight: ClassVar[float] = 0.0
    term_name: ClassVar[str] = "variance"

    def term(self, outputs: Outputs) -> Tensor:
        """Mean variance of the features within a domain."""
        return feature_variance(outputs)
