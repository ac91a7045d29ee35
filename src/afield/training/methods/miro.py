"""MIRO: stay able to tell what the pretrained network saw (Cha et al., 2022).

    z_l, z⁰_l      outputs of stage l of the network, and of a frozen copy of it as it started
    v_l            softplus(b_l) + 1e-5, one b per channel, learned; v starts at 0.1
    loss = R + weight · Σ_l ½ mean over all entries of [(z_l - z⁰_l)² / v_l + log v_l]

R is the mean cross-entropy. The stages are the stem and the blocks of a CNN, or four of the blocks
of a transformer, at a quarter of its depth each. b has a learning rate of its own, `spread_rate`
times the run's. Use it with `--average swad`, as its authors do; they set `weight` to 0.01 on PACS
and VLCS. It only makes sense with pretrained weights: without them, a warning says so.

Differs from the paper: the mean encoders are the identity, as in the authors' code. Differs from
the authors' code: the patch embedding of transformers is not among the stages.
"""

import copy
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from afield.errors import SpecError
from afield.hyperparameters import LogUniform, Variant
from afield.networks.backbone import Classifier
from afield.networks.stages import channel_axis, hook_outputs, stage_shapes
from afield.training.learner import Learner, Task, require_classifier, sample_of_zeros
from afield.training.method import Batches, Logs, Method, pool

__all__ = ["MIRO"]

log = logging.getLogger(__name__)

FIRST_VARIANCE, LEAST_VARIANCE = 0.1, 1e-5
# Number of blocks of a transformer whose outputs are compared.
BLOCKS = 4


@cache
def _warn_of_random_start() -> None:
    """Log the warning once in a process, not for every run."""
    log.warning(
        "miro keeps features near those of the start, which are random here; give pretrained "
        "--weights"
    )


@dataclass(frozen=True)
class MIRO(Method):
    """Mutual-information regularization; `weight` is λ, `spread_rate` is that of the variances."""

    weight: Annotated[float, LogUniform(1e-3, 1.0)] = 0.1
    spread_rate: Annotated[float, Variant((10.0, 25.0))] = 10.0

    def __post_init__(self) -> None:
        for name in ("weight", "spread_rate"):
            if getattr(self, name) < 0:
                raise SpecError(f"miro.{name}={getattr(self, name):g}: must not be below 0")

    def setup(self, model: nn.Module, task: Task) -> Learner:
        """Add the frozen copy of the features, and the variances of the stages."""
        first = copy.deepcopy(require_classifier(model, "miro").features)
        if not task.pretrained:
            _warn_of_random_start()
        x = sample_of_zeros(model, task)
        shapes = _compared_stages(model, x)
        spread = nn.ParameterList(_first_spread(shape, x) for shape in shapes.values())
        return Learner(
            model,
            task,
            {"first": first, "spread": spread},
            {"parts.spread": self.spread_rate},
            frozen=["first"],
            layers=list(shapes),
        )

    def loss(self, learner: Learner, batches: Batches) -> tuple[Tensor, Logs]:
        """Risk plus the distance of the stages from those of the frozen copy."""
        pooled, model = pool(batches), cast(Classifier, learner.model)
        first, spread = learner.parts["first"], cast(nn.ParameterList, learner.parts["spread"])
        logits, now = _collect(model, pooled.x, learner.layers)
        names = [name.removeprefix("features.") for name in learner.layers]
        with torch.no_grad():
            _, before = _collect(first, pooled.x, names)
        penalty = torch.stack(
            [
                _negative_log_likelihood(now[name], before[inner], b)
                for name, inner, b in zip(learner.layers, names, spread, strict=True)
            ]
        ).sum()
        loss = F.cross_entropy(logits, pooled.y) + self.weight * penalty
        return loss, {"penalty": penalty.detach()}


def _collect(
    net: nn.Module, x: Tensor, names: tuple[str, ...] | list[str]
) -> tuple[Tensor, Mapping[str, Tensor]]:
    """Outputs of a network, and of some of its modules."""
    stages: dict[str, Tensor] = {}
    with hook_outputs(net, stages.__setitem__, *names):
        outputs: Tensor = net(x)
    return outputs, stages


def _negative_log_likelihood(z: Tensor, mean: Tensor, b: Tensor) -> Tensor:
    """Half the mean of (z - mean)² / v + log v; means over positions come first, which is fast."""
    variance = F.softplus(b) + LEAST_VARIANCE
    shared = [dim for dim, size in enumerate(b.shape) if size == 1 or dim == 0]
    distance = cast(Tensor, _MeanSquares.apply(z - mean, shared))
    return (distance / variance + variance.log()).mean() / 2


class _MeanSquares(torch.autograd.Function):
    """Mean of the squares over some dimensions, whose gradient reads the maps only once."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dims: list[int]) -> Tensor:
        """Mean of the squares."""
        ctx.save_for_backward(x)
        return x.square().mean(dim=dims, keepdim=True)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Gradient with respect to `x`."""
        (x,) = ctx.saved_tensors
        return x * (gradient * (2 * gradient.numel() / x.numel())), None


def _compared_stages(model: nn.Module, x: Tensor) -> dict[str, tuple[int, ...]]:
    """Stages of the features, with their shapes; some of the blocks of a transformer."""
    shapes = {n: s for n, s in stage_shapes(model, x).items() if n.startswith("features.")}
    blocks = [name for name, shape in shapes.items() if len(shape) == 3]
    count = min(BLOCKS, len(blocks))
    kept = {blocks[len(blocks) * (i + 1) // count - 1] for i in range(count)}
    return {name: shapes[name] for name in shapes if name not in blocks or name in kept}


def _first_spread(shape: tuple[int, ...], x: Tensor) -> nn.Parameter:
    """B of a stage, one per channel."""
    axis = channel_axis(shape, tuple(x.shape))
    sizes = [shape[axis] if dim == axis else 1 for dim in range(len(shape))]
    start = math.log(math.expm1(FIRST_VARIANCE - LEAST_VARIANCE))
    return nn.Parameter(torch.full(sizes, start, device=x.device, dtype=x.dtype))
