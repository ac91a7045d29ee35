"""SAM: seek weights whose neighbours do well too (Foret et al., 2021).

    g = ∇R(θ),   ε = ρ g / ‖g‖,   gradient for the optimizer = ∇R(θ + ε)

R is the mean cross-entropy over the pooled batch, and the norm is that of all weights together.
Where the gradient vanishes, ε is 0. With ρ = 0 it is ERM.

Differs from the paper: nothing. Public implementations differ among themselves: here BatchNorm
statistics are those of the first pass, the second pass draws the same dropout masks, and the
gradient that is clipped is the one at θ + ε. The loss in the log is the one at θ + ε.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from afield.errors import SpecError
from afield.hyperparameters import Choice
from afield.training.building_blocks.second_pass import backward_at_offset, norm
from afield.training.learner import Learner
from afield.training.method import Batches, Logs, Method, pool

__all__ = ["SAM"]


@dataclass(frozen=True)
class SAM(Method):
    """Sharpness-aware minimization; `rho` is the radius of the neighbourhood."""

    rho: Annotated[float, Choice((0.01, 0.02, 0.05, 0.1))] = 0.05

    def __post_init__(self) -> None:
        if self.rho < 0:
            raise SpecError(f"sam.rho={self.rho:g}: must not be below 0")

    def update(self, learner: Learner, batches: Batches) -> Logs:
        """Step along the gradient at the worst of the near weights."""
        pooled = pool(batches)
        _, loss, _ = backward_at_offset(
            learner, lambda: F.cross_entropy(learner.model(pooled.x), pooled.y), self.offset
        )
        learner.step_optimizer()
        return {"loss": loss}

    def offset(self, gradient: list[Tensor]) -> Sequence[Tensor]:
        """ε, for the gradient at the present weights."""
        length = norm(gradient)
        return torch._foreach_mul(gradient, torch.where(length > 0, self.rho / length, 0.0))
