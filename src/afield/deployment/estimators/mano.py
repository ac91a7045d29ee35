"""MaNo: the norm of normalized logits (Xie et al., 2024), through a line of held-out domains.

    score(domain) = (mean over samples and classes of P⁴)^(1/4)     P = softmax(logits)

Differs from the paper: the normalization is always the softmax; the paper uses a Taylor expansion
of it where the predictions of a domain are unsure.
"""

from collections.abc import Sequence

from afield.deployment.estimator import Estimator, on_line
from afield.deployment.held_out import DomainOutputs

__all__ = ["MaNo"]


class MaNo(Estimator):
    """How far the probabilities are from even ones."""

    def estimate(self, held_out: Sequence[DomainOutputs], new: DomainOutputs) -> float:
        """The value on the line of held-out domains."""
        accuracies = [each.accuracy for each in held_out]
        return on_line([_score(each) for each in held_out], accuracies, _score(new))


def _score(domain: DomainOutputs) -> float:
    return float(domain.probabilities().pow(4).mean()) ** 0.25
