"""CausIRL with CORAL: random mixtures of domains have like features (Chevalley et al., 2022).

    A = the first s_d samples of each domain d,   B = all other samples
    s_d uniform in 0 … m_d - 1,   m_d the number of samples of d
    loss = mean(risks) + penalty · [mean_j (μ_A - μ_B)_j² + mean_jk (C_A - C_B)_jk²]

μ and C are the mean and the covariance of the features. Two mixtures are more alike than two
domains, so the penalty is less strict than that of `coral`, and it is one distance instead of one
for each pair. If A or B has fewer than two samples, the penalty of the step is 0.

Differs from the paper: nothing. Differs from DomainBed: nothing, except that a distance that is not
a number is not replaced by 0, because it does not occur.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from afield.training.building_blocks.feature_distances import moment_distance
from afield.training.building_blocks.forward import Outputs
from afield.training.methods.coral import CORAL

__all__ = ["CausIRLCORAL"]


@dataclass(frozen=True)
class CausIRLCORAL(CORAL):
    """Invariant causal mechanisms, with CORAL's distance; `penalty` is its weight."""

    min_batch = 1

    def cut(self, sizes: Sequence[int]) -> Tensor:
        """How many samples of each domain are in the first mixture."""
        return torch.cat([torch.randint(size, (1,)) for size in sizes])

    def mixture_distance(self, first: Tensor, second: Tensor) -> Tensor:
        """Distance between the features of two mixtures."""
        return moment_distance([first, second])

    def distance(self, outputs: Outputs) -> Tensor:
        """Distance between two random mixtures of the domains."""
        domains = outputs.by_domain(outputs.features)
        cuts = self.cut([len(own) for own in domains]).tolist()
        first = torch.cat([own[:cut] for own, cut in zip(domains, cuts, strict=True)])
        second = torch.cat([own[cut:] for own, cut in zip(domains, cuts, strict=True)])
        if min(len(first), len(second)) < 2:
            return outputs.features.new_zeros(())
        return self.mixture_distance(first, second)
