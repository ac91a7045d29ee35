"""MMD: features with the same distribution in all domains, as kernels see it (Li et al., 2018).

    loss = mean(risks) + penalty · mean over pairs (a, b) of domains of
           [mean K(a, a) + mean K(b, b) - 2 mean K(a, b)]
    K(x, y) = Σ_γ exp(-γ ‖x - y‖²),   γ = 0.001, 0.01, …, 1000

With one source domain, or without a penalty, it is ERM on the mean of the risks. With many
features, most of the seven kernels are 0 or 1 and the penalty has little effect.

Differs from the paper: without its autoencoder and its adversary, as in DomainBed. Differs from
DomainBed: nothing; the kernels of all samples are computed once instead of once for each pair.
"""

from dataclasses import dataclass

from torch import Tensor

from afield.training.building_blocks.feature_distances import kernel_distance
from afield.training.building_blocks.forward import Outputs
from afield.training.methods.coral import CORAL

__all__ = ["MMD"]


@dataclass(frozen=True)
class MMD(CORAL):
    """Maximum mean discrepancy; `penalty` is the weight of the distance between domains."""

    min_batch = 1

    def distance(self, outputs: Outputs) -> Tensor:
        """Mean distance of the domains' features over all pairs."""
        return kernel_distance(outputs.by_domain(outputs.features))
