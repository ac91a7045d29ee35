"""EFDMix: mix the distributions of maps between samples of different domains (Zhang et al., 2022).

    x ← x + (1 - λ) (y - sg x),   y = the values of x[π], put at the ranks that the values of x have
                                  within each channel;   λ ~ Beta(α, α) per sample

MixStyle matches mean and variance; this matches the whole distribution of values of a channel. All
else is as in `mixstyle`. sg stops the gradient, so it has weight 1 through x, and it also reaches
the other sample through its sorted values. With λ = 1, or with probability 0, it is ERM.

Differs from the paper: what differs in `mixstyle`. Equal values, such as the zeros of a ReLU, are
ranked in the order of their positions.
"""

from dataclasses import dataclass

from torch import Tensor

from afield.networks.styles import match_distributions
from afield.training.methods.mixstyle import MixStyle

__all__ = ["EFDMix"]


@dataclass(frozen=True)
class EFDMix(MixStyle):
    """Exact feature distribution mixing; it has the hyperparameters of MixStyle."""

    def mix(self, x: Tensor, lam: Tensor, perm: Tensor, axis: int) -> Tensor:
        """Maps with mixed distributions."""
        return match_distributions(x, lam, perm, axis=axis)
