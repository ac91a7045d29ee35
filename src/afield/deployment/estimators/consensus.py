"""The mean of the five estimators that use confidences, which is the default of `estimate`.

estimate = mean of mean_confidence, difference_of_confidences, atc_maximum, atc_entropy and mano
"""

from collections.abc import Sequence

import numpy as np

from afield import registry
from afield.deployment.estimator import Estimator
from afield.deployment.held_out import DomainOutputs

__all__ = ["Consensus"]

MEMBERS = ("mean_confidence", "difference_of_confidences", "atc_maximum", "atc_entropy", "mano")


class Consensus(Estimator):
    """Errors of several estimators cancel in part."""

    def estimate(self, held_out: Sequence[DomainOutputs], new: DomainOutputs) -> float:
        """The mean of the estimates."""
        members = [registry.find("estimators", name)() for name in MEMBERS]
        return float(np.mean([member.estimate(held_out, new) for member in members]))
