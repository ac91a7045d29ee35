"""SelfReg: samples of a class should have like logits and features (Kim et al., 2021).

    z, f, q    features, logits, and projected features of the batch, sorted by class
    i, j       the batch shuffled twice within each class;   λ ~ Beta(½, ½), one for the batch
    mix(t) = λ t[i] + (1 - λ) t[j];   M = mean squared difference over all entries
    loss = R + min(1, sg R) · {λ [M(f, f[i]) + 0.3 M(z, q[i])]
                               + (1 - λ) [M(f, mix f) + 0.3 M(z, mix q)]}

R is the mean cross-entropy; sg stops the gradient. Pairs are positive ones only, from whichever
domain. The projection q has three linear layers with BatchNorm, twice as wide as the features. If
every class has one sample, a logit is compared with itself.

Differs from the paper: neither its weight averaging (use `--average swa`) nor its curriculum of
domains is included, as in DomainBed. Differs from DomainBed's and the authors' code: nothing by
default. Their projection is in no optimizer and so never trained, and the published numbers are
those of this fixed projection; `projection=trained` trains it.
"""

from dataclasses import dataclass
from typing import Annotated, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from afield.hyperparameters import Variant
from afield.networks.backbone import Classifier
from afield.training.learner import Learner, Task, require_classifier
from afield.training.method import Batches, Logs, Method, pool

__all__ = ["SelfReg"]

# Weight of the features beside the logits, and the width that the projection does not double.
FEATURE_WEIGHT, WIDE = 0.3, 2048


@dataclass(frozen=True)
class SelfReg(Method):
    """Self-supervised contrastive regularization; `projection` is fixed or trained."""

    projection: Annotated[Literal["fixed", "trained"], Variant(("fixed", "trained"))] = "fixed"

    def setup(self, model: nn.Module, task: Task) -> Learner:
        """Add the projection of the features."""
        width = require_classifier(model, "self_reg").width
        hidden = width if width == WIDE else 2 * width
        projection = nn.Sequential(
            *(nn.Linear(width, hidden), nn.BatchNorm1d(hidden), nn.ReLU()),
            *(nn.Linear(hidden, hidden), nn.BatchNorm1d(hidden), nn.ReLU()),
            *(nn.Linear(hidden, width), nn.BatchNorm1d(width)),
        )
        projection.requires_grad_(requires_grad=self.projection == "trained")
        return Learner(model, task, {"projection": projection})

    def loss(self, learner: Learner, batches: Batches) -> tuple[Tensor, Logs]:
        """Risk plus the distances of logits and features within classes."""
        pooled, model = pool(batches), cast(Classifier, learner.model)
        order = self.order(pooled.y)
        x, y = pooled.x[order], pooled.y[order]
        z = model.features(x)
        logits, projected = model.head(z), learner.parts["projection"](z)
        i, j, lam = self.shuffle1(y), self.shuffle2(y), self.lam().to(z)

        def mixed(values: Tensor) -> Tensor:
            return lam * values[i] + (1 - lam) * values[j]

        alone = F.mse_loss(logits, logits[i]) + FEATURE_WEIGHT * F.mse_loss(z, projected[i])
        in_mix = F.mse_loss(logits, mixed(logits))
        in_mix = in_mix + FEATURE_WEIGHT * F.mse_loss(z, mixed(projected))
        risk = F.cross_entropy(logits, y)
        penalty = lam * alone + (1 - lam) * in_mix
        loss = risk + risk.detach().clamp(max=1) * penalty
        return loss, {"risk": risk.detach(), "penalty": penalty.detach()}

    def order(self, y: Tensor) -> Tensor:
        """Places that sort the batch by class."""
        return y.argsort(stable=True)

    def shuffle1(self, y: Tensor) -> Tensor:
        """Places of a sorted batch, shuffled within each class."""
        return (y + torch.rand(len(y), device=y.device, dtype=torch.float64)).argsort()

    def shuffle2(self, y: Tensor) -> Tensor:
        """Places of a sorted batch, shuffled once more."""
        return self.shuffle1(y)

    def lam(self) -> Tensor:
        """λ ~ Beta(½, ½)."""
        return torch.distributions.Beta(0.5, 0.5).sample()
