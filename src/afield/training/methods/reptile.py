"""Reptile: adapt to every domain from the same start, then average (Nichol et al., 2018).

    θᵢ: k gradient steps on domain i from Θ;   outer step on mean(Θ - θᵢ) / α

Differs from the paper: this is its batched form with domains as tasks, with plain gradient steps
instead of Adam in the inner loop, and the run's optimizer outside (`outer=plain` is the paper's
step, with a step size of one). With one step per domain it is `erm` on the mean of the domains; the
default is two.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from afield.hyperparameters import Variant
from afield.training.inner_loop import InnerLoop

__all__ = ["Reptile"]


@dataclass(frozen=True)
class Reptile(InnerLoop):
    """First-order meta-learning that averages the inner loops of the domains."""

    steps_per_domain: Annotated[int, Variant((2, 3, 5))] = 2

    parallel: ClassVar[bool] = True

    def weights(self, n: int) -> Sequence[float]:
        """The same weight for all domains."""
        return [1 / n] * n
