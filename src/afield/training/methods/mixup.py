"""Mixup: train between the domains (Xu et al., 2020; Yan et al., 2020; Wang et al., 2020).

    a random ring of the domains;   for neighbors i, j:   λ ~ Beta(alpha, alpha)
    x = λ xᵢ + (1 - λ) xⱼ,   loss = mean over neighbors of λ CE(x, yᵢ) + (1 - λ) CE(x, yⱼ)

Batches are paired sample by sample, up to the length of the shorter one. With one source domain,
which is its own neighbor, it is ERM.

Differs from the papers: inputs are mixed, as in DomainBed, not features; there is no adversary.
Differs from DomainBed: all pairs share one forward pass; random numbers come from torch.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from afield.data.samples import Batch
from afield.errors import SpecError
from afield.hyperparameters import LogUniform
from afield.training.building_blocks.forward import mix_inputs
from afield.training.learner import Learner
from afield.training.method import Batches, Logs, Method, domain_means, pool

__all__ = ["Mixup"]


@dataclass(frozen=True)
class Mixup(Method):
    """Inter-domain mixup; a small `alpha` mixes less."""

    alpha: Annotated[float, LogUniform(0.1, 10.0)] = 0.2

    mixes_inputs: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.alpha <= 0:
            raise SpecError(f"mixup.alpha={self.alpha:g}: must be above 0")

    def order(self, domains: int) -> Tensor:
        """The ring, as a permutation of the domains."""
        return torch.randperm(domains)

    def lam(self, like: Tensor, pairs: int) -> Tensor:
        """λ of each pair of neighbors."""
        alpha = like.new_full((pairs,), self.alpha)
        return torch.distributions.Beta(alpha, alpha, validate_args=False).sample()

    def loss(self, learner: Learner, batches: Batches) -> tuple[Tensor, Logs]:
        """Mean over neighbors of the loss on their mixture."""
        ring = [batches[i] for i in self.order(len(batches)).tolist()]
        pairs = [_cut(*pair) for pair in zip(ring, ring[1:] + ring[:1], strict=True)]
        first, second = (list(side) for side in zip(*pairs, strict=True))
        ours, theirs = pool(first), pool(second)
        shares = zip(self.lam(ours.x, len(pairs)), first, strict=True)
        lam = torch.cat([share.expand(len(batch.y)) for share, batch in shares])
        logits = learner.model(mix_inputs(ours.x, theirs.x, lam))
        losses = lam * F.cross_entropy(logits, ours.y, reduction="none")
        losses = losses + (1 - lam) * F.cross_entropy(logits, theirs.y, reduction="none")
        return domain_means(losses, first).mean(), {"lambda": lam.mean()}


def _cut(first: Batch, second: Batch) -> tuple[Batch, Batch]:
    """Both batches at the length of the shorter one."""
    length = min(len(first.y), len(second.y))
    return (
        Batch(*(column[:length] for column in first)),
        Batch(*(column[:length] for column in second)),
    )
