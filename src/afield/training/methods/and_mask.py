"""AND-mask: a weight moves only if the domains agree on the direction (Parascandolo et al., 2021).

    mask = 1 where |mean_d sign g_d| ≥ agreement, else 0
    gradient = mask ⊙ mean_d g_d / (share of ones in the tensor's mask + 1e-10)

g_d is the gradient of the risk of domain d. With `agreement=1` all domains must agree; a gradient
of 0 never agrees. Momentum and weight decay of the optimizer also move masked weights. With
`agreement=0` it is ERM on the mean of the risks, up to the 1e-10.

Differs from the paper: nothing. Differs from DomainBed: every domain has a forward pass of its
own, so that all passes together cost as much as one step of ERM.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from afield.hyperparameters import Uniform
from afield.tensors import set_gradients
from afield.training.building_blocks.domain_gradients import (
    domain_gradients,
    mean_of,
    sign_agreement,
)
from afield.training.building_blocks.penalties import check_settings
from afield.training.learner import Learner
from afield.training.method import Batches, Logs, Method

__all__ = ["ANDMask"]


@dataclass(frozen=True)
class ANDMask(Method):
    """Masked gradients; `agreement` is the paper's τ."""

    agreement: Annotated[float, Uniform(0.5, 1.0)] = 1.0

    def __post_init__(self) -> None:
        check_settings(self, shares=["agreement"])

    def mask(self, gradients: Sequence[Tensor], mean: Tensor) -> Tensor:
        """Mask of a tensor, from the gradients of all domains and their mean."""
        return (sign_agreement(gradients) >= self.agreement).to(mean)

    def update(self, learner: Learner, batches: Batches) -> Logs:
        """Step along the masked mean of the domains' gradients."""
        risks, gradients = domain_gradients(learner, batches)
        masked, shares = [], []
        for each in gradients:
            mean = mean_of(each)
            mask = self.mask(each, mean)
            shares.append(mask.mean())
            masked.append(mean.mul_(mask).div_(1e-10 + shares[-1]))
        set_gradients(learner.parameters(), masked)
        learner.step_optimizer()
        return {"loss": risks.mean().detach(), "agreement": torch.stack(shares).mean()}
