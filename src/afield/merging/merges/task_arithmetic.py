"""Task arithmetic: the sum of the experts' changes (Ilharco et al., 2023).

    merged = Σ_d Δ_d

Differs from the paper: the scale is 1, because there are no data to choose it by; the paper chooses
it on validation data, about 0.3 to 0.4 (unverified). Give ``scale`` to set it.
"""

from torch import Tensor

from afield.merging.scopes import scope

__all__ = ["task_arithmetic"]


@scope("entry")
def task_arithmetic(deltas: Tensor) -> Tensor:
    """Sum over the experts."""
    return deltas.sum(0)
