"""Mean confidence (Hendrycks and Gimpel, 2017), with the temperature of held-out domains."""

from collections.abc import Sequence

from afield.deployment.estimator import Estimator, common_temperature
from afield.deployment.held_out import DomainOutputs

__all__ = ["MeanConfidence"]


class MeanConfidence(Estimator):
    """The mean of the largest probabilities."""

    def estimate(self, held_out: Sequence[DomainOutputs], new: DomainOutputs) -> float:
        """The mean confidence of the new samples."""
        return float(new.confidences(common_temperature(held_out)).mean())
