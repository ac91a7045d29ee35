"""Reptile: from one start to every domain's own weights, then to their mean (Nichol et al., 2018).

    θᵢ: k gradient steps on domain i from Θ;   outer step on mean(Θ - θᵢ) / α

Differs from the paper: its batched form with domains as tasks, plain gradient steps instead of Adam
inside, and the run's optimiser outside (`outer=plain` is the paper's step, at rate one). With one
step per domain it is `erm` on the mean of the domains; the default is two.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from afield.hyperparameters import Variant
from afield.training.inner_loop import InnerLoop

__all__ = ["Reptile"]


@dataclass(frozen=True)
class Reptile(InnerLoop):
    """First-order meta-learning by averaging the domains' own walks."""

    steps_per_domain: Annotated[int, Variant((2, 3, 5))] = 2

    parallel: ClassVar[bool] = True

    def weights(self, n: int) -> Sequence[float]:
        """All domains alike."""
        return [1 / n] * n
