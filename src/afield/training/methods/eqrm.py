"""EQRM: minimize a high quantile of the risk over domains (Eastwood et al., 2022).

    h = 1.06 · std(risks) · n^(-1/5);   q solves mean_d Φ((q - risk_d) / h) = quantile
    loss = mean(risks) during the warm-up, then q

Φ is the normal distribution: q is a quantile of a kernel density estimate of the risks. When the
warm-up ends, the optimizer is reset and learning rates are multiplied by `lr_factor`. A quantile of
1/2 of symmetric risks is their middle; a quantile towards 1 is beyond the worst domain.

`gradient=code` is the published form: with bounds lo and hi = min and max of the risks +
h Φ⁻¹(quantile), q = lo + c (hi - lo), where c is found by bisection and is a constant for the
gradient. That is not the derivative of q; `gradient=exact` is.

Differs from the paper: the gradient, as said. Differs from the authors' code, and from DomainBed:
drawn warm-ups take effect (theirs are not whole numbers, so neither optimizer nor learning rate
ever changed); learning rate and warm-up are relative to the run's (1e-6 is 0.02 times the usual
5e-5; 2,500 of 5,000 steps are a half); no form for quantiles beyond 1. One source domain is
refused; equal risks are no special case.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Annotated, Literal

import torch
from torch import Tensor

from afield.errors import SpecError
from afield.hyperparameters import LogUniform, Uniform, Variant
from afield.training.building_blocks.penalties import check_settings, finish_warm_up
from afield.training.learner import Learner
from afield.training.method import Batches, Logs, Method, risks

__all__ = ["EQRM"]

HALVINGS = 32


@dataclass(frozen=True)
class EQRM(Method):
    """Empirical quantile risk minimization; `warmup` is a share of the steps."""

    quantile: Annotated[float, Uniform(0.5, 0.99)] = 0.75
    warmup: Annotated[float, LogUniform(0.06, 0.6)] = 0.5
    lr_factor: Annotated[float, LogUniform(0.002, 0.2)] = 0.02
    gradient: Annotated[Literal["code", "exact"], Variant(("code", "exact"))] = "code"

    min_domains = 2

    def __post_init__(self) -> None:
        check_settings(self, not_negative=["lr_factor"], shares=["warmup"])
        if not 0 < self.quantile < 1:
            raise SpecError(f"eqrm.quantile={self.quantile:g}: must be above 0 and below 1")

    def loss(self, learner: Learner, batches: Batches) -> tuple[Tensor, Logs]:
        """Mean risk during the warm-up, then the quantile of the risks."""
        warm = finish_warm_up(learner, self.warmup, lr_factor=self.lr_factor)
        risk = risks(learner.model, batches)
        loss = self.quantile_of(risk) if warm else risk.mean()
        return loss, {"worst": risk.detach().max()}

    def quantile_of(self, risk: Tensor) -> Tensor:
        """Quantile of the density estimate of the risks."""
        # The summand lets equal risks have a derivative, and is too small to change others.
        bandwidth = 1.06 * (risk.var() + 1e-20).sqrt() * len(risk) ** -0.2
        beyond = bandwidth * NormalDist().inv_cdf(self.quantile)
        low, high = risk.min() + beyond, risk.max() + beyond
        found = low + self._position(low, high, risk, bandwidth) * (high - low)
        if self.gradient == "code":
            return found
        # By the implicit function theorem, dq/dR = -(∂F/∂R) / (∂F/∂q) for F(q, R) = quantile.
        q = found.detach()
        scaled = (q - risk) / bandwidth
        below = torch.special.ndtr(scaled).mean()
        density = ((-scaled.square() / 2).exp() / bandwidth).mean() / math.sqrt(2 * math.pi)
        return q - (below - below.detach()) / density.detach()

    @torch.no_grad()
    def _position(self, low: Tensor, high: Tensor, risk: Tensor, bandwidth: Tensor) -> Tensor:
        """Where the quantile is between its bounds, from 0 to 1, by bisection."""
        left, right = torch.zeros_like(low), torch.ones_like(low)
        for _ in range(HALVINGS):
            middle = (left + right) / 2
            q = low + middle * (high - low)
            above = torch.special.ndtr((q - risk) / bandwidth).mean() > self.quantile
            left, right = torch.where(above, left, middle), torch.where(above, middle, right)
        return (left + right) / 2
