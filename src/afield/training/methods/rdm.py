"""RDM: the losses of the worst domain are distributed as those of all (Nguyen et al., 2024).

    w = domain with the largest risk,   ℓ_w = losses of its samples,   a = losses of all samples
    loss = mean(risks) + penalty · MMD(ℓ_w, a) + variance_weight · [var(a) + var(ℓ_w)]

MMD is that of `mmd` on single numbers, with one wider kernel (γ = 0.0001) in addition; variances
have the divisor m - 1. During the warm-up only the risks count; when it ends, the optimizer is
reset and learning rates are multiplied by `lr_factor`. With both weights 0 it is ERM on the mean of
the risks.

Differs from the paper: nothing. Differs from the authors' code: warm-up and learning rate are
relative to the run's (1,500 of 5,000 steps; 1.5e-5 is 0.3 times the usual 5e-5); batches may have
different lengths. Their default batch is 88: `--set batch=88`.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from afield.hyperparameters import Uniform
from afield.training.building_blocks.feature_distances import WIDTHS, block_means, kernel
from afield.training.building_blocks.forward import Outputs, forward
from afield.training.building_blocks.penalties import check_settings, finish_warm_up
from afield.training.learner import Learner
from afield.training.method import Batches, Logs, Method

__all__ = ["RDM"]


@dataclass(frozen=True)
class RDM(Method):
    """Risk distribution matching; `warmup` is a share of the steps."""

    penalty: Annotated[float, Uniform(0.1, 10.0)] = 5.0
    variance_weight: Annotated[float, Uniform(0.001, 0.007)] = 0.004
    warmup: Annotated[float, Uniform(0.16, 0.54)] = 0.3
    lr_factor: Annotated[float, Uniform(0.16, 0.4)] = 0.3

    min_batch = 2

    def __post_init__(self) -> None:
        weights = ["penalty", "variance_weight", "lr_factor"]
        check_settings(self, not_negative=weights, shares=["warmup"])

    def loss(self, learner: Learner, batches: Batches) -> tuple[Tensor, Logs]:
        """Mean risk, and after the warm-up the weighted distance and variances."""
        warm = finish_warm_up(learner, self.warmup, lr_factor=self.lr_factor)
        outputs = forward(learner, batches)
        risk, (distance, variance) = outputs.risks.mean(), matching(outputs)
        loss = risk
        if warm:
            loss = risk + self.penalty * distance + self.variance_weight * variance
        logs = {"risk": risk, "distance": distance, "variance": variance}
        return loss, {name: value.detach() for name, value in logs.items()}


def matching(outputs: Outputs) -> tuple[Tensor, Tensor]:
    """Distance of the worst domain's losses from all losses, and the sum of their variances.

    Both are computed for every domain, because choosing one first would make the device wait.
    """
    kernels = kernel(outputs.losses[:, None], (1e-4, *WIDTHS))
    shares = [len(batch.y) / len(outputs.y) for batch in outputs.batches]
    means = block_means(kernels, [len(batch.y) for batch in outputs.batches])
    to_all = means @ means.new_tensor(shares)
    distances = means.diagonal() + kernels.mean() - 2 * to_all
    variances = torch.stack([own.var() for own in outputs.by_domain(outputs.losses)])
    worst = outputs.risks.detach().argmax()
    return distances[worst], outputs.losses.var() + variances[worst]
