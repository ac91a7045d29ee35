"""Group DRO: higher weights for source domains with higher risk (Sagawa et al., 2020).

    q_d ← q_d · exp(eta · risk_d),   q ← q / Σq,   loss = Σ q_d risk_d

Differs from the paper: no stronger regularization and no group adjustment; q starts at one, which
is the paper's 1/n after the first normalization. Differs from DomainBed: nothing. If a step draws
from n of N groups, the weights of the other groups wait, and the loss is multiplied by N/n, so that
on average it is the same.
"""

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from afield.errors import SpecError
from afield.hyperparameters import LogUniform
from afield.training.learner import Learner
from afield.training.method import Batches, Logs, Method, origins, risks

__all__ = ["GroupDRO"]


@dataclass(frozen=True)
class GroupDRO(Method):
    """Distributionally robust optimization over domains; `eta` is the step size of the weights."""

    eta: Annotated[float, LogUniform(1e-3, 1e-1)] = 0.01

    def __post_init__(self) -> None:
        if self.eta < 0:
            raise SpecError(
                f"eta={self.eta:g}: must not be below 0, because easy groups would gain weight"
            )

    def loss(self, learner: Learner, batches: Batches) -> tuple[Tensor, Logs]:
        """Sum of the risks, weighted by q."""
        risk = risks(learner.model, batches)
        plain = risk.detach()
        weights = learner.memory.get("q", plain.new_ones(len(learner.task.sources)))
        origin = origins(batches)
        # Subtracting the maximum prevents overflow; normalization makes q the same.
        rise = plain.new_zeros(len(weights)).index_copy(0, origin, plain) - plain.max()
        grown = weights * (self.eta * rise).exp()
        q = learner.memory["q"] = grown / grown.sum()
        share = len(batches) / len(weights)
        return q[origin] @ risk / share, {"heaviest": q.max()}
