"""SAGM: slopes here and at the worst near weights should agree (Wang et al., 2023).

    g = ∇R(θ),   ε = (ρ / (‖g‖ + 1e-12) - α) g,   gradient for the optimizer = ½ [g + ∇R(θ + ε)]

R is the mean cross-entropy over the pooled batch, and the norm is that of all weights together.
With ρ = α = 0 it is ERM. The authors use weight decay 1e-4, dropout 0.5 on PACS, and α = 5e-4 on
OfficeHome and DomainNet.

Differs from the paper: nothing. Differs from the authors' code: ρ can be set (theirs is always
0.05, whatever the settings say), and the weights are restored from a copy, not by subtracting ε.
BatchNorm statistics are those of the first pass, as in theirs. The loss in the log is R(θ).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from afield.errors import SpecError
from afield.hyperparameters import Choice, LogUniform
from afield.tensors import add
from afield.training.building_blocks.second_pass import backward_at_offset, norm
from afield.training.learner import Learner
from afield.training.method import Batches, Logs, Method, pool

__all__ = ["SAGM"]


@dataclass(frozen=True)
class SAGM(Method):
    """Sharpness-aware gradient matching; `rho` is SAM's radius, `alpha` a step back towards g."""

    rho: Annotated[float, Choice((0.01, 0.02, 0.05, 0.1))] = 0.05
    alpha: Annotated[float, LogUniform(1e-4, 0.1)] = 1e-3

    def __post_init__(self) -> None:
        for name in ("rho", "alpha"):
            if getattr(self, name) < 0:
                raise SpecError(f"sagm.{name}={getattr(self, name):g}: must not be below 0")

    def update(self, learner: Learner, batches: Batches) -> Logs:
        """Step along the mean of the gradients at both weights."""
        pooled = pool(batches)
        loss, moved, gradient = backward_at_offset(
            learner, lambda: F.cross_entropy(learner.model(pooled.x), pooled.y), self.offset
        )
        pairs = zip(learner.parameters(), gradient, strict=True)
        both = [(p.grad, g) for p, g in pairs if p.grad is not None]
        total = [grad for grad, _ in both]
        add(total, [g for _, g in both])
        torch._foreach_mul_(total, 0.5)
        learner.step_optimizer()
        return {"loss": loss, "moved loss": moved}

    def offset(self, gradient: list[Tensor]) -> Sequence[Tensor]:
        """ε, for the gradient at the present weights."""
        return torch._foreach_mul(gradient, self.rho / (norm(gradient) + 1e-12) - self.alpha)
