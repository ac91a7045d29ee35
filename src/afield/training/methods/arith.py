"""Arith: step towards the centroid of the domain experts (arithmetic meta-learning, 2025).

    wᵢ = (n + 1 - i) / (n + ε)   so that   Θ - Σ wᵢ gᵢ = (ε Θ + Σ θᵢ₊₁) / (n + ε)

θᵢ₊₁ is where a walk of plain gradient steps is after its i-th domain, gᵢ what that domain moved it
(`inner_loop`). ε = n (n - 1) / 2 makes the weights sum to one: 1/2, 1/3, 1/6 for three domains.
Another ε scales them all alike, which Adam, being free of scale, does not notice.

Differs from the paper: nothing; its one learning rate is both the inner and the outer one. The
optimiser gets Σ wᵢ gᵢ / α, as Adam's own 1e-8 would weigh beside Σ wᵢ gᵢ itself (`outer=raw`).
Differs from the authors' code: one domain a step, cross-entropy only, and no factor 1/α² under SGD.
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
    """Arithmetic meta-learning; `eps` is ε, and `shares` takes the place of all its weights."""

    eps: Annotated[float | None, Variant((0.0, 6.0))] = None
    shares: Annotated[tuple[float, ...], Variant(((), (0.2, 0.3, 0.5)))] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.eps is not None and self.eps < 0:
            raise SpecError(f"arith.eps={self.eps:g}: must not be below 0")

    def check(self, domains: int) -> None:
        """Weights that were given must be as many as the domains."""
        if self.shares and len(self.shares) != domains:
            raise SpecError(
                f"arith.shares: {len(self.shares)} weights for {domains} source domain(s) a step; "
                "give one for each, or none"
            )

    def weights(self, n: int) -> Sequence[float]:
        """Falling arithmetically, the first domain's the greatest."""
        eps = n * (n - 1) / 2 if self.eps is None else self.eps
        return self.shares or [(n - i) / (n + eps) for i in range(n)]
