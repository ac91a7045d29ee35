"""Features, logits and losses of all batches, from one forward pass.

A `Classifier` is features followed by a linear head. Penalties on features need both, and usually
by domain: `forward(learner, batches)` computes them once, and `by_domain` divides them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch.nn.functional as F
from torch import Tensor

from afield.errors import SpecError
from afield.training.method import Batches, Learner, domain_means, pool
from afield.training.parts import require_classifier

__all__ = ["Outputs", "forward", "require_real_inputs"]


@dataclass(frozen=True)
class Outputs:
    """What one forward pass gives for the samples of all batches, in their order."""

    batches: Batches
    x: Tensor
    y: Tensor
    features: Tensor
    logits: Tensor

    @cached_property
    def losses(self) -> Tensor:
        """Cross-entropy of each sample."""
        return F.cross_entropy(self.logits, self.y, reduction="none")

    @cached_property
    def risks(self) -> Tensor:
        """Mean loss of each domain."""
        return domain_means(self.losses, self.batches)

    def by_domain(self, values: Tensor) -> Sequence[Tensor]:
        """Values of the samples of each domain."""
        return values.split([len(batch.y) for batch in self.batches])


def forward(learner: Learner, batches: Batches) -> Outputs:
    """Compute the features and logits of all batches together."""
    model, pooled = require_classifier(learner.model, "the method"), pool(batches)
    features = model.features(pooled.x)
    return Outputs(batches, pooled.x, pooled.y, features, model.head(features))


def require_real_inputs(x: Tensor, name: str) -> Tensor:
    """Return the inputs, or raise `SpecError` if they are no real numbers that can be mixed."""
    if not x.is_floating_point():
        dtype = str(x.dtype).removeprefix("torch.")
        raise SpecError(
            f"{name} mixes inputs, which {dtype} inputs do not allow; give real numbers, such as "
            "the features that `afield embed` writes"
        )
    return x
