"""Nuclear norm of the probabilities (Deng et al., 2023), through a line fitted on held-out domains.

    score(domain) = ‖P‖_* / √(n · min(n, classes))     P: n × classes

It is large if predictions are confident and spread over the classes.
"""

from collections.abc import Sequence

import torch

from afield.deployment.estimator import Estimator, on_line
from afield.deployment.held_out import DomainOutputs

__all__ = ["NuclearNorm"]


class NuclearNorm(Estimator):
    """Confidence and dispersion of the predictions."""

    def estimate(self, held_out: Sequence[DomainOutputs], new: DomainOutputs) -> float:
        """The value on the line of held-out domains."""
        accuracies = [each.accuracy for each in held_out]
        return on_line([_score(each) for each in held_out], accuracies, _score(new))


def _score(domain: DomainOutputs) -> float:
    probabilities = domain.probabilities()
    samples, classes = probabilities.shape
    norm = torch.linalg.matrix_norm(probabilities, ord="nuc")
    return float(norm) / (samples * min(samples, classes)) ** 0.5
