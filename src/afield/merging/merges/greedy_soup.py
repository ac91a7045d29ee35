"""Greedy soup: the mean of those experts that validation admits (Wortsman et al., 2022).

    experts in the order of their validation accuracy on the sources, the best first:
        keep an expert if the mean of those kept so far and of it is not worse on validation
    merged = mean of Δ_d over the experts that are kept

The experts must share the base with its head, such as the draws of ``--expert-draws``. The choice
needs models and data, so the benchmark makes it and calls the merge with the experts that it keeps;
files cannot be merged in this way.

Differs from the paper: validation accuracy is the mean over the sources' validation splits.
"""

from torch import Tensor

from afield.merging.scopes import scope

__all__ = ["greedy_soup"]


@scope("entry", validation=True)
def greedy_soup(deltas: Tensor) -> Tensor:
    """Mean over the experts that are kept."""
    return deltas.mean(0)
