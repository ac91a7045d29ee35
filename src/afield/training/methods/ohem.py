"""Online hard example mining: train on the hardest samples of a batch (Shrivastava et al., 2016).

    loss = mean cross-entropy of the `share` of the pooled batch whose losses are largest

Differs from the paper: whole images are selected, not regions of images; the paper selects 128 of
about 4,000 regions of two images. The paper's read-only copy of the network is not needed, because
losses that are not selected have no gradient.
"""

from dataclasses import dataclass
from typing import Annotated

import torch.nn.functional as F
from torch import Tensor

from afield.errors import SpecError
from afield.hyperparameters import Uniform
from afield.training.learner import Learner
from afield.training.method import Batches, Logs, Method, pool

__all__ = ["OHEM"]


@dataclass(frozen=True)
class OHEM(Method):
    """Online hard example mining; `share` is the share of a batch that is used."""

    share: Annotated[float, Uniform(0.1, 1.0)] = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise SpecError(f"ohem.share={self.share:g}: must be above 0 and at most 1")

    def loss(self, learner: Learner, batches: Batches) -> tuple[Tensor, Logs]:
        """Mean loss over the hardest samples."""
        pooled = pool(batches)
        losses = F.cross_entropy(learner.model(pooled.x), pooled.y, reduction="none")
        hardest = losses.topk(max(1, round(self.share * len(losses)))).values
        return hardest.mean(), {"threshold": hardest[-1].detach()}
