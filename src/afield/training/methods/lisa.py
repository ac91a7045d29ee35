"""LISA: mix within a class across domains, or within a domain across classes (Yao et al., 2022).

    with probability same_label, pair each sample with one of its class from another domain,
    else with one of its domain from another class;   λ ~ Beta(alpha, alpha), one for the step
    x = λ xᵢ + (1 - λ) xⱼ,   loss = mean of λ CE(x, yᵢ) + (1 - λ) CE(x, yⱼ)

Partners come from the same step. A sample for which there is none stays as it is.

Differs from the paper: partners are drawn from the step's batches, not from all samples. It has
not been compared with the authors' code.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from afield.data.samples import Batch
from afield.errors import SpecError
from afield.hyperparameters import LogUniform, Uniform
from afield.training.building_blocks.forward import mix_inputs
from afield.training.building_blocks.penalties import check_settings
from afield.training.learner import Learner
from afield.training.method import Batches, Logs, Method, pool

__all__ = ["LISA"]


@dataclass(frozen=True)
class LISA(Method):
    """Selective augmentation; `same_label` is the probability of mixing within a class."""

    same_label: Annotated[float, Uniform(0.0, 1.0)] = 0.5

    mixes_inputs: ClassVar[bool] = True
    alpha: Annotated[float, LogUniform(0.5, 8.0)] = 2.0

    def __post_init__(self) -> None:
        check_settings(self, shares=["same_label"])
        if self.alpha <= 0:
            raise SpecError(f"lisa.alpha={self.alpha:g}: must be above 0")

    def within_class(self) -> bool:
        """Whether this step mixes samples of one class."""
        return float(torch.rand(())) < self.same_label

    def lam(self, like: Tensor) -> Tensor:
        """λ of the step."""
        alpha = like.new_full((), self.alpha)
        return torch.distributions.Beta(alpha, alpha, validate_args=False).sample()

    def partners(self, batch: Batch) -> Tensor:
        """Index of a random partner of each sample; its own if there is no partner."""
        same_class = batch.y[:, None] == batch.y
        same_domain = batch.group[:, None] == batch.group
        shared, other = (same_class, same_domain)[:: 1 if self.within_class() else -1]
        allowed = shared & ~other
        priority = torch.rand(allowed.shape, device=allowed.device).masked_fill(~allowed, -1.0)
        alone = torch.arange(len(batch.y), device=batch.y.device)
        return torch.where(allowed.any(dim=1), priority.argmax(dim=1), alone)

    def loss(self, learner: Learner, batches: Batches) -> tuple[Tensor, Logs]:
        """Mean loss on the mixed samples, whose labels are mixed too."""
        batch = pool(batches)
        partner, lam = self.partners(batch), self.lam(batch.x)
        logits = learner.model(mix_inputs(batch.x, batch.x[partner], lam.expand(len(batch.y))))
        loss = lam * F.cross_entropy(logits, batch.y)
        loss = loss + (1 - lam) * F.cross_entropy(logits, batch.y[partner])
        return loss, {"lambda": lam}
