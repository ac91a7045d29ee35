"""Arith: step towards the centroid of the domain experts (arithmetic meta-learning, 2025).

    wᵢ = (n + 1 - i) / (n + ε)   so that   Θ - Σ wᵢ gᵢ = (ε Θ + Σ θᵢ₊₁) / (n + ε)

Plain gradient steps visit one domain after the other. θᵢ₊₁ are the weights after the i-th domain,
and gᵢ is the change by that domain (see `afield.training.inner_loop`). ε = n (n - 1) / 2 makes the
wᵢ sum to one: 1/2, 1/3, 1/6 for three domains. Another ε scales all wᵢ by the same factor, which
has no effect on Adam, because Adam is invariant to scale.

Differs from the paper: the validation accuracy that selects a checkpoint is the mean over the
source domains, where the paper pools their validation splits, so that larger domains weigh more.
The paper's one learning rate is both the inner and the outer one. The optimizer gets Σ wᵢ gᵢ / α,
because Adam's eps of 1e-8 is not negligible beside Σ wᵢ gᵢ itself (`outer=raw`).
Differs from the authors' code: each inner step uses one domain, the loss is cross-entropy only, and
there is no factor 1/α² under SGD.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from afield.errors import SpecError
from afield.hyperparameters import Variant
from afield.training.inner_loop import InnerLoop

__all__ = ["Arith"]


@dataclass(frozen=True)
class Arith(InnerLoop):
    """Arithmetic meta-learning; `eps` is ε, and `shares`, if given, replaces the weights wᵢ."""

    eps: Annotated[float | None, Variant((0.0, 6.0))] = None
    shares: Annotated[tuple[float, ...], Variant(((), (0.2, 0.3, 0.5)))] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.eps is not None and self.eps < 0:
            raise SpecError(f"arith.eps={self.eps:g}: must not be below 0")

    def check(self, domains: int) -> None:
        """Raise `SpecError` unless `shares` has one weight per domain."""
        if self.shares and len(self.shares) != domains:
            raise SpecError(
                f"arith.shares: {len(self.shares)} weights for {domains} source domain(s) per "
                "step; give one weight per domain, or none"
            )

    def weights(self, n: int) -> Sequence[float]:
        """An arithmetically decreasing sequence; the first domain has the greatest weight."""
        eps = n * (n - 1) / 2 if self.eps is None else self.eps
        return self.shares or [(n - i) / (n + eps) for i in range(n)]
