"""Multi-headed: shared features, one head per source domain (Chattopadhyay et al., 2020).

    loss = mean cross-entropy of h_d(F(x)), each sample through the head h_d of its domain d
    on an unseen domain, the mean of the raw logits: 1/n · Σ_d h_d(F(x))

This is the baseline of that name in the DMG paper: domain-specific parameters without masks. The
first head is the network's own, the others are initialized as torch initializes linear layers. With
one source domain it is ERM.

Differs from the paper: nothing that the paper states. Differs from the authors' code: every domain
has a head of its own, while the heads of their AlexNet are one and the same object, which makes it
ERM; all heads have torch's initialization (theirs has a standard deviation of 0.001 on PACS);
checkpoints are compared by the mean of the heads, which is deployed, not by the head of the true
domain, whose score is kept as `known`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from afield.errors import SpecError
from afield.networks.backbone import Classifier
from afield.training.learner import Learner, Task
from afield.training.method import Batches, Logs, Method, pool

__all__ = ["MultiHead"]


class _Heads(nn.Linear):
    """One linear head per domain, in a single layer; each head is a block of its outputs."""

    def __init__(self, first: nn.Linear, count: int) -> None:
        # The meta device draws no random numbers, so one domain gives the same numbers as ERM.
        width, classes = first.in_features, first.out_features
        super().__init__(width, count * classes, device="meta")
        heads = [first, *(nn.Linear(width, classes).to(first.weight) for _ in range(count - 1))]
        self.weight = nn.Parameter(torch.cat([head.weight.detach() for head in heads]))
        self.bias = nn.Parameter(torch.cat([head.bias.detach() for head in heads]))
        self.count = count

    def forward(self, features: Tensor, domain: Tensor | int | None = None) -> Tensor:
        """Logits of the given domain (one for all samples or one per sample), or the mean."""
        logits = super().forward(features).unflatten(1, (self.count, -1))
        if domain is None:
            return logits.mean(dim=1)
        if isinstance(domain, int):
            return logits[:, domain]
        return logits[torch.arange(len(logits), device=logits.device), domain]


class _MultiHeaded(Classifier):
    """A network with one head per domain; the domain label is an optional input."""

    def __init__(self, net: Classifier, domains: Sequence[str]) -> None:
        with torch.device("meta"):
            super().__init__(net.features, net.width, 1, freeze_bn=net.freeze_bn)
        self.head = _Heads(net.head, len(domains))
        self.domains = tuple(domains)

    def forward(self, x: Tensor, domain: Tensor | int | None = None) -> Tensor:
        """Logits of the given domain, or the mean over the heads."""
        return self.head(self.features(x), domain)


@dataclass(frozen=True)
class MultiHead(Method):
    """Shared features and one head per source domain; it has no hyperparameters."""

    def setup(self, model: nn.Module, task: Task) -> Learner:
        """Give the network one head per source domain."""
        if not isinstance(model, Classifier):
            kind = type(model).__name__
            raise SpecError(f"multi_head needs a Classifier (features and a head), not {kind}")
        if not model.head.weight.requires_grad:
            raise SpecError(
                "multi_head trains one head per source, but the network's head is frozen"
            )
        return Learner(_MultiHeaded(model, task.sources), task)

    def loss(self, learner: Learner, batches: Batches) -> tuple[Tensor, Logs]:
        """Mean loss over all samples, each through the head of its domain."""
        pooled = pool(batches)
        return F.cross_entropy(learner.model(pooled.x, pooled.domain), pooled.y), {}
