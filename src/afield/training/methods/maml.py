"""MAML, first order: adapt to the other domains, then learn the last (Finn et al., 2017).

    w = 0, …, 0, 1:  only the gradient at the end of the walk counts

Differs from the paper: the second derivatives are left out, as in its own first-order form, and the
walk goes over the domains where the paper adapts to one task at a time. It is the row of that name
in Arith's ablation, which does not say more; `afield.training.inner_loop` has the walk.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from afield.training.inner_loop import InnerLoop

__all__ = ["MAML"]


@dataclass(frozen=True)
class MAML(InnerLoop):
    """First-order model-agnostic meta-learning over domains."""

    def weights(self, n: int) -> Sequence[float]:
        """The last domain's gradient alone."""
        return [0.0] * (n - 1) + [1.0]
