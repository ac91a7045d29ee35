"""Features, logits and losses of all batches, from one forward pass.

A `Classifier` is features followed by a linear head. Penalties on features need both, and usually
by domain: `forward(learner, batches)` computes them once, and `by_domain` divides them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from afield.errors import SpecError
from afield.training.learner import Learner, require_classifier
from afield.training.method import Batches, domain_means, pool


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
    def risk(self) -> Tensor:
        """Mean loss over all samples, as ERM computes it."""
        return F.cross_entropy(self.logits, self.y)

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


def mix_inputs(first: Tensor, second: Tensor, share: Tensor) -> Tensor:
    """Mixture of inputs: of each sample, a share of the first and the rest of the second."""
    if not first.is_floating_point():
        dtype = str(first.dtype).removeprefix("torch.")
        raise SpecError(
            f"the method mixes inputs, which {dtype} inputs do not allow; give real numbers, such "
            "as the features that `afield embed` writes"
        )
    return torch.lerp(second, first, share.view(-1, *[1] * (first.ndim - 1)))


def reverse_gradient(x: Tensor, strength: float) -> Tensor:
    """Return the input, whose gradient will be multiplied by minus `strength`."""
    return cast(Tensor, _ReverseGradient.apply(x, strength))


class _ReverseGradient(torch.autograd.Function):
    """The identity with a reversed gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, strength: float) -> Tensor:
        """Return the input unchanged."""
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Reverse the gradient and scale it by `strength`."""
        return -ctx.strength * gradients[0], None
