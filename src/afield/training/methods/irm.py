"""IRM: one scale of the logits that is best in every source domain (Arjovsky et al., 2019).

    gᵢ = Σ_c (p_ic - y_ic) f_ic          derivative of a sample's loss by a scale of its logits
    loss = mean(risks) + penalty · mean_d (mean of gᵢ over even i in d) · (mean over odd i in d)

The product of two halves of a batch is an unbiased estimate of the squared derivative of the
domain's risk. It may be negative.

Differs from the paper: the square of one derivative over the whole batch, which its code uses, is
biased; the product is DomainBed's. As in DomainBed, the penalty is 1 during the warm-up, and the
optimizer is reset when the warm-up ends. Differs from DomainBed: the warm-up is a share of the
run; its 500 of 5,000 steps are a tenth. A batch of one sample, whose other half would be empty, is
refused.
"""

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from afield.hyperparameters import LogUniform, Uniform
from afield.training.building_blocks.forward import forward
from afield.training.building_blocks.penalties import check_settings, is_warm, scale_penalty
from afield.training.method import Batches, Learner, Logs, Method

__all__ = ["IRM"]


@dataclass(frozen=True)
class IRM(Method):
    """Invariant risk minimization; `warmup` is a share of the steps."""

    penalty: Annotated[float, LogUniform(0.1, 1e5)] = 100.0
    warmup: Annotated[float, Uniform(0.0, 0.5)] = 0.1

    min_batch = 2

    def __post_init__(self) -> None:
        check_settings(self, not_negative=["penalty"], shares=["warmup"])

    def loss(self, learner: Learner, batches: Batches) -> tuple[Tensor, Logs]:
        """Mean risk plus the weighted penalty."""
        weight = self.penalty if is_warm(learner, self.warmup) else 1.0
        outputs = forward(learner, batches)
        risk, penalty = outputs.risks.mean(), scale_penalty(outputs)
        return risk + weight * penalty, {"risk": risk.detach(), "penalty": penalty.detach()}
