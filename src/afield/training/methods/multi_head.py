"""Multi-headed: shared features, a head for each source domain (Chattopadhyay et al., 2020).

    loss = mean cross-entropy of h_d(F(x)), each sample through the head h_d of its own domain d
    an unseen domain gets the mean of the raw logits: 1/n · Σ_d h_d(F(x))

It is the baseline of that name in the paper on DMG: domain-specific parameters without its masks.
The first head is the one that the network came with, the others are drawn as torch draws linear
layers: with one source domain it is ERM.

Differs from the paper: nothing that it says. Differs from the authors' code: every domain has a
head of its own, while those of their AlexNet are one and the same object, which makes it ERM; all
heads start as torch has it (theirs with a deviation of 0.001 on PACS); checkpoints are compared by
the mean of the heads, which is deployed, not by the head of the true domain, whose score is kept
beside it as `known`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from afield.errors import SpecError
from afield.networks.backbone import Classifier
from afield.training.method import Batches, Learner, Logs, Method, Task, pool

__all__ = ["MultiHead"]


class _Heads(nn.Linear):
    """A linear head for each of some domains, in one layer: a block of its outputs each."""

    def __init__(self, first: nn.Linear, count: int) -> None:
        # Nothing is drawn on this device: with one domain, random numbers are as without heads.
        width, classes = first.in_features, first.out_features
        super().__init__(width, count * classes, device="meta")
        every = [first, *(nn.Linear(width, classes).to(first.weight) for _ in range(count - 1))]
        self.weight = nn.Parameter(torch.cat([head.weight.detach() for head in every]))
        self.bias = nn.Parameter(torch.cat([head.bias.detach() for head in every]))
        self.count = count

    def forward(self, features: Tensor, domain: Tensor | int | None = None) -> Tensor:
        """Logits of a known domain, one for all or one for each sample, or the mean of all."""
        logits = super().forward(features).unflatten(1, (self.count, -1))
        if domain is None:
            return logits.mean(dim=1)
        if isinstance(domain, int):
            return logits[:, domain]
        return logits[torch.arange(len(logits), device=logits.device), domain]


class _MultiHeaded(Classifier):
    """A network with a head for each of some domains; a plain module that can be told which."""

    def __init__(self, net: Classifier, domains: Sequence[str]) -> None:
        with torch.device("meta"):
            super().__init__(net.features, net.width, 1, freeze_bn=net.freeze_bn)
        self.head = _Heads(net.head, len(domains))
        self.domains = tuple(domains)

    def forward(self, x: Tensor, domain: Tensor | int | None = None) -> Tensor:
        """Logits: those of a known domain, or the mean over the heads."""
        return self.head(self.features(x), domain)


@dataclass(frozen=True)
class MultiHead(Method):
    """Shared features and a head for each source domain; there is nothing to set."""

    def setup(self, model: nn.Module, task: Task) -> Learner:
        """Give the network more heads."""
        if not isinstance(model, Classifier):
            kind = type(model).__name__
            raise SpecError(f"multi_head takes a Classifier, features and a head; {kind} is none")
        if not model.head.weight.requires_grad:
            raise SpecError("multi_head trains a head for each source; the network's is frozen")
        return Learner(_MultiHeaded(model, task.sources), task)

    def loss(self, learner: Learner, batches: Batches) -> tuple[Tensor, Logs]:
        """Mean loss over all samples, each with the head of its domain."""
        pooled = pool(batches)
        return F.cross_entropy(learner.model(pooled.x, pooled.domain), pooled.y), {}
