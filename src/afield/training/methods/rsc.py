"""RSC: mute the features on which the head relies most (Huang et al., 2020).

    gᵢ = ∂f_y / ∂zᵢ = W_y                        a row of the head's weight, y the label of i
    keepᵢ = gᵢ < quantile of gᵢ at 1 - drop_features
    cᵢ = p_y(zᵢ) - p_y(zᵢ ⊙ keepᵢ)               how much the confidence falls
    keepᵢ = all features, where cᵢ < quantile of c at 1 - drop_samples
    loss = mean cross-entropy of head(z ⊙ keep) over the pooled batch

For a linear head, which features are muted depends on the class only, and takes no backward pass.
With `drop_features=0` the quantile is the maximum, and one feature of a class is still muted; with
`drop_samples=0` this concerns one sample.

Differs from the paper: features are single numbers, not pixels or channels of a map, as in
DomainBed. Differs from DomainBed: nothing.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from afield.hyperparameters import Uniform
from afield.training.building_blocks.forward import Outputs, forward
from afield.training.building_blocks.penalties import check_settings
from afield.training.learner import Learner, require_classifier
from afield.training.method import Batches, Logs, Method

__all__ = ["RSC"]


@dataclass(frozen=True)
class RSC(Method):
    """Representation self-challenging; the settings are shares of features and of samples."""

    drop_features: Annotated[float, Uniform(0.0, 0.5)] = 1 / 3
    drop_samples: Annotated[float, Uniform(0.0, 0.5)] = 1 / 3

    def __post_init__(self) -> None:
        check_settings(self, shares=["drop_features", "drop_samples"])

    def loss(self, learner: Learner, batches: Batches) -> tuple[Tensor, Logs]:
        """Mean loss with the muted features."""
        head = require_classifier(learner.model, self.name).head
        outputs = forward(learner, batches)
        keep = self.kept(head, outputs)
        return F.cross_entropy(head(outputs.features * keep), outputs.y), {"kept": keep.mean()}

    @torch.no_grad()
    def kept(self, head: torch.nn.Linear, outputs: Outputs) -> Tensor:
        """1 for the features of each sample that are kept, 0 for those that are muted."""
        weight, y = head.weight, outputs.y[:, None]
        keep = (weight < weight.quantile(1 - self.drop_features, dim=1, keepdim=True))[outputs.y]
        muted = head(outputs.features * keep)
        falls = outputs.logits.softmax(dim=1).gather(1, y) - muted.softmax(dim=1).gather(1, y)
        untouched = falls < falls.quantile(1 - self.drop_samples)
        return (keep | untouched).to(outputs.features)
