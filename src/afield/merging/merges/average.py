"""Average: the mean of the experts, a model soup (Wortsman et al., 2022).

    merged = mean_d Δ_d

Differs from the paper: this is the uniform soup only; `greedy_soup` chooses among the experts.
"""

from torch import Tensor

from afield.merging.scopes import scope

__all__ = ["average"]


@scope("entry")
def average(deltas: Tensor) -> Tensor:
    """Mean over the experts."""
    return deltas.mean(0)
