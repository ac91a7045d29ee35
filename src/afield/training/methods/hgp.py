"""HGP: equal slopes, and equal curvatures along the slope, in all domains (Hemati et al., 2023).

    g_d, H_d = gradient and Hessian of risk_d in the head's weights;   ḡ, H̄ = those of mean(risks)
    loss = mean(risks) + mean_d [curvature · ‖H_d g_d - H̄ ḡ‖² + slope · ‖g_d - ḡ‖²]

H̄ ḡ and ḡ are constants; all other terms have gradients in the features and in the head. For a
linear head, both products are known in closed form. With one source domain, or with both weights
0, it is ERM on the mean of the risks.

Differs from the paper: no warm-up, as in the authors' code of the benchmark. Differs from the
authors' code: H g is not computed as ‖g‖ · ∇‖g‖, which is 0/0 for g = 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from afield.hyperparameters import LogUniform
from afield.training.building_blocks.forward import forward
from afield.training.building_blocks.head_derivatives import gradient, hessian_product, with_bias
from afield.training.building_blocks.penalties import check_settings
from afield.training.learner import Learner
from afield.training.method import Batches, Logs, Method

__all__ = ["HGP"]


@dataclass(frozen=True)
class HGP(Method):
    """Hessian-gradient products; the settings are the weights of `curvature` and `slope`."""

    curvature: Annotated[float, LogUniform(1e-5, 1e-3)] = 1e-4
    slope: Annotated[float, LogUniform(1e-3, 1e-1)] = 5e-3

    def __post_init__(self) -> None:
        check_settings(self, not_negative=["curvature", "slope"])

    def loss(self, learner: Learner, batches: Batches) -> tuple[Tensor, Logs]:
        """Mean risk plus the weighted differences of slopes and curvatures."""
        outputs = forward(learner, batches)
        columns = (with_bias(outputs.features), outputs.logits, outputs.y)
        domains = list(zip(*(outputs.by_domain(column) for column in columns), strict=True))
        slopes = torch.stack([gradient(*own) for own in domains])
        curvatures, middle = self.curvatures(domains, slopes)
        penalty = self.curvature * _spread(curvatures, middle)
        penalty = penalty + self.slope * _spread(slopes, slopes.mean(dim=0))
        risk = outputs.risks.mean()
        return risk + penalty, {"risk": risk.detach(), "penalty": penalty.detach()}

    def curvatures(
        self, domains: Sequence[tuple[Tensor, ...]], slopes: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Curvature of each domain's risk, and of the mean risk."""
        pairs = list(zip(domains, slopes, strict=True))
        own = [hessian_product(inputs, logits, slope) for (inputs, logits, _), slope in pairs]
        mean = slopes.mean(dim=0)
        middle = [hessian_product(inputs, logits, mean) for inputs, logits, _ in domains]
        return torch.stack(own), torch.stack(middle).mean(dim=0)


def _spread(values: Tensor, middle: Tensor) -> Tensor:
    """Mean over domains of the squared distance to a constant."""
    return (values - middle.detach()).square().sum(dim=(1, 2)).mean()
