"""MTL: the head also sees an embedding of the domain (Blanchard et al., 2021).

    e_d ← a · mean of z over the batch of domain d + (1 - a) e_d, from 0;  kept without gradient
    logits = head([z, e_d]),   loss = Σ_d R_d (a sum)

z are the features, R_d is the risk of domain d; the gradient goes through the mean of z. The
deployed model predicts from batches: e is the mean of the features of the test batch, so it needs
unlabelled samples of the domain that it meets, 64 at a time. If the head ignores e, it is ERM with
n times the mean risk.

Differs from the paper: the embedding is the mean of learned features, as in DomainBed, not a kernel
mean. Differs from DomainBed's code: it overwrites the embedding with random noise, in training and
in testing, so that half of its head reads noise; here it does not. Published numbers have that
defect.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from afield.errors import SpecError
from afield.hyperparameters import Choice
from afield.networks.backbone import Classifier
from afield.networks.inference import BatchPredictor
from afield.training.learner import Learner, Task, require_classifier
from afield.training.method import Batches, Logs, Method, domain_means, origins, pool

__all__ = ["MTL"]


class _Embedded(BatchPredictor, Classifier):
    """A classifier whose head sees the mean of the batch's features beside those of a sample."""

    def __init__(self, net: Classifier) -> None:
        with torch.device("meta"):
            super().__init__(net.features, net.width, 1, freeze_bn=net.freeze_bn)
        self.head = nn.Linear(2 * net.width, net.head.out_features).to(net.head.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch of one domain."""
        z = self.features(x)
        return self.logits(z, z.mean(dim=0).expand_as(z))

    def logits(self, z: Tensor, embedding: Tensor) -> Tensor:
        """Logits of features with the embedding of each sample's domain."""
        return self.head(torch.cat([z, embedding], dim=1))


@dataclass(frozen=True)
class MTL(Method):
    """Marginal transfer learning; `ema` is a, the share of the new batch in the embedding."""

    ema: Annotated[float, Choice((0.5, 0.9, 0.99, 1.0))] = 0.99

    predicts_from_batches: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 < self.ema <= 1:
            raise SpecError(f"mtl.ema={self.ema:g}: must be above 0 and at most 1")

    def setup(self, model: nn.Module, task: Task) -> Learner:
        """Make the head wider, and remember an embedding of every domain."""
        net = _Embedded(require_classifier(model, "mtl", own_head=True))
        learner = Learner(net, task)
        weight = net.head.weight.detach()
        learner.memory["embeddings"] = weight.new_zeros(len(task.sources), net.width)
        return learner

    def loss(self, learner: Learner, batches: Batches) -> tuple[Tensor, Logs]:
        """Sum of the risks, each with the embedding of its domain."""
        pooled, model = pool(batches), cast(_Embedded, learner.model)
        sizes = [len(batch.y) for batch in batches]
        z = model.features(pooled.x)
        embeddings = self._renew(learner, domain_means(z, batches), origins(batches))
        rows = torch.cat(
            [row.expand(size, -1) for row, size in zip(embeddings, sizes, strict=True)]
        )
        losses = F.cross_entropy(model.logits(z, rows), pooled.y, reduction="none")
        return domain_means(losses, batches).sum(), {}

    def _renew(self, learner: Learner, means: Tensor, domains: Tensor) -> Tensor:
        """Embeddings of the batches' domains after this batch; the memory gets them too."""
        old = learner.memory["embeddings"]
        new = self.ema * means + (1 - self.ema) * old[domains]
        learner.memory["embeddings"] = old.index_copy(0, domains, new.detach())
        return new
