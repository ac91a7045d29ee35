"""First-order MAML: adapt to all domains but the last, then learn the last (Finn et al., 2017).

    w = 0, …, 0, 1:  only the gradient at the end of the inner loop counts

Differs from the paper: second derivatives are omitted, as in the paper's own first-order form, and
the inner loop visits all domains, while the paper adapts to one task at a time. This is the row of
that name in Arith's ablation, which gives no further details. See `afield.training.inner_loop` for
the inner loop.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from afield.training.inner_loop import InnerLoop

__all__ = ["MAML"]


@dataclass(frozen=True)
class MAML(InnerLoop):
    """First-order model-agnostic meta-learning over domains."""

    def weights(self, n: int) -> Sequence[float]:
        """Only the gradient of the last domain counts."""
        return [0.0] * (n - 1) + [1.0]
