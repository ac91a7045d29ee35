"""Task arithmetic: the sum of the experts' changes (Ilharco et al., 2023).

    merged = Σ_d Δ_d

Differs from the paper: the paper chooses the scale on validation data. `bench` and `merge` on the
command line use 0.3, which the paper reports as a good value without such data (unverified);
`afield.merge` has the scale 1 unless another is given.
"""

from torch import Tensor

from afield.merging.scopes import scope

__all__ = ["task_arithmetic"]


@scope("entry", usual_scale=0.3)
def task_arithmetic(deltas: Tensor) -> Tensor:
    """Sum over the experts."""
    return deltas.sum(0)
