"""Difference of confidences (Guillory et al., 2021).

estimate = mean accuracy of held-out domains + mean confidence(new) − mean confidence(held-out)
"""

from collections.abc import Sequence

import numpy as np

from afield.deployment.estimator import Estimator, common_temperature, mean_accuracy
from afield.deployment.held_out import DomainOutputs

__all__ = ["DifferenceOfConfidences"]


class DifferenceOfConfidences(Estimator):
    """The accuracy falls by as much as the mean confidence."""

    def estimate(self, held_out: Sequence[DomainOutputs], new: DomainOutputs) -> float:
        """The mean accuracy on held-out domains, moved by the difference."""
        temperature = common_temperature(held_out)
        before = np.mean([float(each.confidences(temperature).mean()) for each in held_out])
        moved = float(new.confidences(temperature).mean()) - before
        return float(np.clip(mean_accuracy(held_out) + moved, 0, 1))
