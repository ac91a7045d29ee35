"""SagNet: classify by content, and features from which style cannot classify (Nam et al., 2021).

    style of a feature vector z: mean μ and variance v over its entries;  z̃ = (z - μ) / √(v + 1e-5)
    S(z) = z̃ √(v' + 1e-5) + μ', with the styles of random pairs of samples mixed (a ~ U(0, 1))
    T(z) = content of another sample, style of its own
    (1) features and head      descend on the cross-entropy of head(S(z))
    (2) style head             descends on the cross-entropy of style(T(z))
    (3) features               descend on -weight · mean over samples and classes of
                               log softmax style(T(z))

Every phase has a forward pass and draws of its own, and the deployed network is head(z). Each phase
is a step of the run's optimizer in which the other weights have no gradient, so features take two
steps per update.

Differs from the paper: as in DomainBed, the style is that of the final feature vector. With
`at=map` it is that of the channels of a map, the last but one of the stages, as in the paper; then
the layers behind it are shared with the style head, while the paper has a copy of them. Differs
from DomainBed: phase (2) computes no gradients of the features, which DomainBed throws away.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from afield.errors import SpecError
from afield.hyperparameters import LogUniform, Variant
from afield.networks.backbone import Classifier
from afield.networks.stages import block_stages, channel_axis, hook_outputs
from afield.networks.styles import randomize_content, randomize_style
from afield.training.learner import Learner, Task, require_classifier, sample_of_zeros
from afield.training.method import Batches, Logs, Method, pool

__all__ = ["SagNet"]

# Changes features, or maps with channels along an axis.
Change = Callable[[Tensor, int], Tensor]


@dataclass(frozen=True)
class SagNet(Method):
    """Style-agnostic network; `weight` is that of the adversary, `at` is where styles are mixed."""

    weight: Annotated[float, LogUniform(0.01, 10.0)] = 0.1
    at: Annotated[Literal["features", "map"], Variant(("features", "map"))] = "features"

    may_refuse_network: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.weight < 0:
            raise SpecError(f"sagnet.weight={self.weight:g}: must not be below 0")

    def setup(self, model: nn.Module, task: Task) -> Learner:
        """Add the style head, and find the map."""
        width = require_classifier(model, "sagnet").width
        layers = []
        if self.at == "map":
            layers = list(block_stages(model, sample_of_zeros(model, task)))[-2:][:1]
            if not layers:
                raise SpecError("sagnet.at=map needs a network with maps; use at=features")
        style = nn.Linear(width, len(task.classes))
        return Learner(model, task, {"style": style}, layers=layers)

    def update(self, learner: Learner, batches: Batches) -> Logs:
        """Three descents: on content, on style, and against style."""
        pooled, model = pool(batches), cast(Classifier, learner.model)
        style, n = learner.parts["style"], len(pooled.y)

        def with_style(z: Tensor, axis: int) -> Tensor:
            alpha, swap = (self.content(key, z, n) for key in ("alpha", "swap"))
            return randomize_style(z, alpha, swap, axis=axis)

        z = self._features(learner, pooled.x, with_style)
        content_loss = F.cross_entropy(model.head(z), pooled.y)
        learner.descend(content_loss, only=model.parameters())

        def with_content(draw: Callable[..., Tensor], z: Tensor, axis: int) -> Tensor:
            return randomize_content(z, draw("swap", z, n), axis=axis)

        with torch.no_grad():
            z = self._features(learner, pooled.x, partial(with_content, self.style))
        style_loss = F.cross_entropy(style(z), pooled.y)
        learner.descend(style_loss, only=style.parameters())
        z = self._features(learner, pooled.x, partial(with_content, self.adversary))
        adversary_loss = -self.weight * style(z).log_softmax(dim=1).mean()
        learner.descend(adversary_loss, only=model.features.parameters())
        return {
            "loss": content_loss.detach(),
            "style loss": style_loss.detach(),
            "adversary loss": adversary_loss.detach(),
        }

    def content(self, key: str, z: Tensor, n: int) -> Tensor:
        """Shares of the own style (`alpha`) or partners (`swap`) of phase (1)."""
        return torch.rand(n, 1).to(z) if key == "alpha" else torch.randperm(n).to(z.device)

    def style(self, key: str, z: Tensor, n: int) -> Tensor:
        """Partners (`swap`) of phase (2)."""
        return self.content(key, z, n)

    def adversary(self, key: str, z: Tensor, n: int) -> Tensor:
        """Partners (`swap`) of phase (3)."""
        return self.content(key, z, n)

    def _features(self, learner: Learner, x: Tensor, change: Change) -> Tensor:
        """Features, changed at the end or at a map."""
        model = cast(Classifier, learner.model)
        if not learner.layers:
            return change(model.features(x), 1)

        def change_map(_: str, output: Tensor) -> Tensor:
            return change(output, channel_axis(tuple(output.shape), tuple(x.shape)))

        with hook_outputs(model, change_map, *learner.layers):
            z: Tensor = model.features(x)
        return z
