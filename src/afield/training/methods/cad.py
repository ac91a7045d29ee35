"""CAD: the domain of a sample cannot be found from its neighbors (Ruan et al., 2022).

    s_ij = zᵢ · zⱼ / temperature
    qᵢ = log Σ_{j≠i, d_j≠d_i} exp s_ij - log Σ_{j≠i} exp s_ij
    loss = mean cross-entropy over the pooled batch - penalty · temperature / 0.07 · mean of qᵢ

The mean is over the samples that have another one of their class in the step, and one of another
domain. With `normalized`, features have length 1. With `flipped=false`, the neighbors of the same
domain are counted (d_j = d_i), and the sign of the term is plus. Without a penalty it is ERM.

Differs from the paper: nothing. Differs from DomainBed: without its projection, which raises an
error; with `flipped=false` a sample is never its own neighbor (there, it is in one of the sums).
One source domain is refused.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from afield.data.samples import Batch
from afield.errors import SpecError
from afield.hyperparameters import Choice, Variant
from afield.training.building_blocks.forward import forward
from afield.training.building_blocks.penalties import check_settings
from afield.training.learner import Learner
from afield.training.method import Batches, Logs, Method, pool

__all__ = ["CAD"]


@dataclass(frozen=True)
class CAD(Method):
    """Contrastive adversarial domain bottleneck."""

    penalty: Annotated[float, Choice((1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0))] = 0.1
    temperature: Annotated[float, Choice((0.05, 0.1))] = 0.1
    normalized: Annotated[bool, Variant((False, True))] = False
    flipped: Annotated[bool, Variant((True, False))] = True

    min_domains = 2

    def __post_init__(self) -> None:
        check_settings(self, not_negative=["penalty"])
        if self.temperature <= 0:
            raise SpecError(f"{self.name}.temperature={self.temperature:g}: must be above 0")

    def neighbors(self, batch: Batch, counted: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Pairs in the first sum and in the second one, and the samples that have a term."""
        others = ~torch.eye(len(batch.y), dtype=torch.bool, device=batch.y.device)
        same_class = (batch.y[:, None] == batch.y) & others
        return counted & others, others, same_class.any(dim=1)

    def loss(self, learner: Learner, batches: Batches) -> tuple[Tensor, Logs]:
        """Mean loss plus the weighted bottleneck."""
        outputs, batch = forward(learner, batches), pool(batches)
        z = F.normalize(outputs.features, dim=1) if self.normalized else outputs.features
        same_domain = batch.group[:, None] == batch.group
        counted, pairs, valid = self.neighbors(batch, same_domain ^ self.flipped)
        similarity = z @ z.T / self.temperature
        shares = _log_sum(similarity, counted) - _log_sum(similarity, pairs)
        valid = valid & counted.any(dim=1)
        mean = shares.where(valid, 0.0).sum() / valid.sum().clamp(min=1)
        bottleneck = (-1 if self.flipped else 1) * self.temperature / 0.07 * mean
        risk = outputs.risk
        logs = {"risk": risk.detach(), "bottleneck": bottleneck.detach()}
        return risk + self.penalty * bottleneck, logs


def _log_sum(values: Tensor, pairs: Tensor) -> Tensor:
    """Log of the sum of exponentials over the pairs of each row; 0 for a row without pairs."""
    empty = ~pairs.any(dim=1, keepdim=True)
    # Rows without pairs would have no finite gradient.
    masked = values.masked_fill(~pairs & ~empty, -torch.inf).masked_fill(empty, 0.0)
    return masked.logsumexp(dim=1).where(~empty[:, 0], 0.0)
