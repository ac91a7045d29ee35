"""Average thresholded confidence with the largest probability (ATC-MC; Garg et al., 2022).

threshold: the share of held-out samples with a higher confidence is their accuracy
estimate = share of new samples with a higher confidence
"""

from collections.abc import Sequence

from afield.deployment.estimator import Estimator, share_above
from afield.deployment.held_out import DomainOutputs

__all__ = ["ATCMaximum"]


class ATCMaximum(Estimator):
    """The share of confident samples."""

    def estimate(self, held_out: Sequence[DomainOutputs], new: DomainOutputs) -> float:
        """The share of new samples above the threshold."""
        scores = [each.confidences() for each in held_out]
        return share_above(scores, [each.hits for each in held_out], new.confidences())
