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
from typing import ClassVar

from torch import Tensor

from afield.training.building_blocks.forward import Outputs
from afield.training.building_blocks.penalties import WarmPenalty, scale_penalty

__all__ = ["IRM"]


@dataclass(frozen=True)
class IRM(WarmPenalty):
    """Invariant risk minimization; `warmup` is a share of the steps."""

    first_weight: ClassVar[float] = 1.0

    def term(self, outputs: Outputs) -> Tensor:
        """Mean product of the derivatives of two halves."""
        return scale_penalty(outputs)
