"""Mean distance from the training data, through a line fitted on held-out domains."""

from collections.abc import Sequence

from afield.deployment.estimator import Estimator, on_line
from afield.deployment.held_out import DomainOutputs

__all__ = ["Distance"]


class Distance(Estimator):
    """Farther domains are harder."""

    needs = "distance"

    def estimate(self, held_out: Sequence[DomainOutputs], new: DomainOutputs) -> float:
        """The value on the line of held-out domains."""
        means = [float(each.scores["distance"].mean()) for each in (*held_out, new)]
        return on_line(means[:-1], [each.accuracy for each in held_out], means[-1])
