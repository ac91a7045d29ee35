"""ARM: adapt to a domain through the context of a batch (Zhang et al., 2021; the form ARM-CML).

    c(x)      a context network: it maps an image to one channel of the same size
    logits = head(F([x, mean of c over the domain's batch])),   loss = mean cross-entropy

The context network has three 5 x 5 convolutions, with BatchNorm and ReLU in between. It sees all
samples of a step in one pass, so that its BatchNorm layers have their common statistics. The
network gets one more input channel, whose weights start as those of the first channel. If they are
0, it is ERM. The deployed model predicts from batches: the context is the mean over the test batch,
so it needs unlabelled samples of the domain that it meets, 64 at a time.

Differs from the paper: nothing that we know of. Differs from DomainBed's code: the context network
is trained with all else (theirs is made after the optimizer, which never sees it; published numbers
have that defect); the batch of a domain is a support set, whatever its size (if the number of all
samples is no multiple of the batch size, theirs is one set of all domains); the added channel of a
random network starts as a copy too; BatchNorm of the context network is never frozen.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from afield.errors import SpecError
from afield.hyperparameters import Variant
from afield.networks.backbone import Classifier
from afield.networks.inference import BatchPredictor
from afield.networks.stages import input_convolution
from afield.training.learner import Learner, Task, require_classifier, sample_of_zeros
from afield.training.method import Batches, Logs, Method, pool

__all__ = ["ARM"]


class _Contextual(BatchPredictor, Classifier):
    """A classifier that sees the mean context of the batch as one more channel."""

    def __init__(self, net: Classifier, inputs: int, channels: int) -> None:
        with torch.device("meta"):
            super().__init__(net.features, net.width, 1, freeze_bn=net.freeze_bn)
        self.head = net.head
        self.context = nn.Sequential(
            *(nn.Conv2d(inputs, channels, 5, padding=2), nn.BatchNorm2d(channels), nn.ReLU()),
            *(nn.Conv2d(channels, channels, 5, padding=2), nn.BatchNorm2d(channels), nn.ReLU()),
            nn.Conv2d(channels, 1, 5, padding=2),
        ).to(net.head.weight)

    def forward(self, x: Tensor, sizes: Sequence[int] = ()) -> Tensor:
        """Logits of batches of these sizes, one per domain; by default all is one batch."""
        contexts = self.context(x)
        means = [
            part.mean(dim=0, keepdim=True).expand_as(part)
            for part in contexts.split(list(sizes) or len(contexts))
        ]
        return self.head(self.features(torch.cat([x, torch.cat(means)], dim=1)))

    def train(self, mode: bool = True) -> "_Contextual":  # noqa: FBT001, FBT002  torch's signature
        """Set training or evaluation mode; only the network's own BatchNorm may be frozen."""
        super().train(mode)
        self.context.train(mode)
        return self


@dataclass(frozen=True)
class ARM(Method):
    """Adaptive risk minimization; `context_channels` is the width of the context network."""

    context_channels: Annotated[int, Variant((64, 32))] = 64

    predicts_from_batches: ClassVar[bool] = True
    may_refuse_network: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.context_channels < 1:
            raise SpecError(f"arm.context_channels={self.context_channels}: must be above 0")

    def setup(self, model: nn.Module, task: Task) -> Learner:
        """Add an input channel and the context network."""
        net = require_classifier(model, "arm")
        layer = input_convolution(net, sample_of_zeros(net, task))
        if layer is None:
            raise SpecError(
                "arm gives images one more channel, and this network has no convolution that takes "
                "them; use a convolutional network"
            )
        inputs = layer.in_channels
        layer.weight = nn.Parameter(
            torch.cat([layer.weight, layer.weight[:, :1]], dim=1).detach(),
            requires_grad=layer.weight.requires_grad,
        )
        layer.in_channels += 1
        return Learner(_Contextual(net, inputs, self.context_channels), task)

    def loss(self, learner: Learner, batches: Batches) -> tuple[Tensor, Logs]:
        """Mean loss over all samples, each with the context of its domain."""
        pooled, model = pool(batches), cast(_Contextual, learner.model)
        logits = model(pooled.x, [len(batch.y) for batch in batches])
        return F.cross_entropy(logits, pooled.y), {}
