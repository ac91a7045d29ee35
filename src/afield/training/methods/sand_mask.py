"""SAND-mask: weights move if the domains' gradients agree and are alike (Shahtalebi et al., 2021).

    mask = max(0, tanh(steepness · (|mean_d sign g_d| - agreement) / var_d g_d))
    gradient = mask ⊙ mean_d g_d / (mean of the tensor's mask + 1e-10)

g_d is the gradient of the risk of domain d, and the variance has the divisor n - 1. As in
`and_mask`, momentum and weight decay also move masked weights. Usual gradients have variances far
below 1, so that the default steepness gives masks of 0 and 1; it is then `and_mask` with > in
place of ≥.

Differs from the paper: nothing. Differs from DomainBed: its default, an agreement of 1, makes every
mask 0, so that nothing is ever trained; here it is 1/2, and 1 is refused. One source domain, which
has no variance, is refused too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from afield.errors import SpecError
from afield.hyperparameters import LogUniform, Uniform
from afield.training.building_blocks.domain_gradients import sign_agreement, sum_of
from afield.training.building_blocks.penalties import check_settings
from afield.training.methods.and_mask import ANDMask

__all__ = ["SANDMask"]


@dataclass(frozen=True)
class SANDMask(ANDMask):
    """Smoothly masked gradients; `agreement` is the paper's τ, `steepness` its k."""

    agreement: Annotated[float, Uniform(0.0, 0.99)] = 0.5
    steepness: Annotated[float, LogUniform(1e-3, 1e5)] = 10.0

    min_domains = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_settings(self, not_negative=["steepness"])
        if self.agreement == 1:
            raise SpecError("sand_mask.agreement=1: must be below 1, because every mask would be 0")

    def mask(self, gradients: Sequence[Tensor], mean: Tensor) -> Tensor:
        """Mask of a tensor, from the gradients of all domains and their mean."""
        excess = sign_agreement(gradients).sub_(self.agreement).mul_(self.steepness)
        variance = sum_of((each - mean).square_() for each in gradients).div_(len(gradients) - 1)
        # An excess of 0 over a variance of 0 is not a number.
        return excess.div_(variance).tanh_().relu_().nan_to_num_(1e-17)
