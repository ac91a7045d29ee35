"""CausIRL with MMD: random mixtures of domains look alike to kernels (Chevalley et al., 2022).

    A = the first s_d samples of each domain d,   B = all other samples
    s_d uniform in 0 … m_d - 1,   m_d the number of samples of d
    loss = mean(risks) + penalty · [mean K(A, A) + mean K(B, B) - 2 mean K(A, B)]

K is the kernel of `mmd`, on features. Everything else is as in `causirl_coral`.

Differs from the paper, and from DomainBed: as `causirl_coral` does.
"""

from dataclasses import dataclass

from torch import Tensor

from afield.training.building_blocks.feature_distances import kernel_distance
from afield.training.methods.causirl_coral import CausIRLCORAL

__all__ = ["CausIRLMMD"]


@dataclass(frozen=True)
class CausIRLMMD(CausIRLCORAL):
    """Invariant causal mechanisms, with MMD's distance; `penalty` is its weight."""

    def mixture_distance(self, first: Tensor, second: Tensor) -> Tensor:
        """Distance between the features of two mixtures."""
        return kernel_distance([first, second])
