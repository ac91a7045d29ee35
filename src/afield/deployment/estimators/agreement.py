"""Agreement of the members of an ensemble (Jiang et al., 2022; Baek et al., 2022).

The share of pairs of members that predict the same class, through a line fitted on held-out
domains. Only ensembles have members.
"""

from collections.abc import Sequence

from afield.deployment.estimator import Estimator, on_line
from afield.deployment.held_out import DomainOutputs

__all__ = ["Agreement"]


class Agreement(Estimator):
    """Members that are wrong disagree."""

    needs = "agreement"

    def estimate(self, held_out: Sequence[DomainOutputs], new: DomainOutputs) -> float:
        """The value on the line of held-out domains."""
        shares = [float(each.scores["agreement"].mean()) for each in (*held_out, new)]
        return on_line(shares[:-1], [each.accuracy for each in held_out], shares[-1])
