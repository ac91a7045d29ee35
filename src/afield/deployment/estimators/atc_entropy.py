"""Average thresholded confidence with the negative entropy (ATC-NE; Garg et al., 2022).

threshold: the share of held-out samples with a higher negative entropy is their accuracy
estimate = share of new samples with a higher negative entropy
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from afield.deployment.estimator import Estimator, share_above
from afield.deployment.held_out import DomainOutputs

__all__ = ["ATCEntropy"]


class ATCEntropy(Estimator):
    """The share of samples of low entropy."""

    def estimate(self, held_out: Sequence[DomainOutputs], new: DomainOutputs) -> float:
        """The share of new samples above the threshold."""
        scores = [_negative_entropy(each) for each in held_out]
        return share_above(scores, [each.hits for each in held_out], _negative_entropy(new))


def _negative_entropy(domain: DomainOutputs) -> Tensor:
    probabilities = domain.probabilities()
    return torch.special.xlogy(probabilities, probabilities).sum(dim=1)
