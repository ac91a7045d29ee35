"""Prediction sets: for each sample, the classes among which the true one probably is.

    score(x, y) = 0 for the predicted class, else 1 − probability of class y for the sample x
    q(level)    = quantile of the scores of the true classes over held-out domains, all with the
                  same weight (conformal prediction with groups; Dunn et al., 2022)
    set(x)      = {y: score(x, y) ≤ q(level)}, which always has the predicted class

The quantile holds for the mean over domains. Beside it is the largest quantile of a single held-out
domain. The coverage is measured on each held-out domain with the quantile of the others. One more
domain is the hardest of all K + 1 with probability 1 / (K + 1), so without further assumptions K
domains cannot promise a coverage above K / (K + 1).

A quantile of K random domains misses its level by about c / K on a further one, because it bends
toward the domains that it was computed from. Without one of them, c / (K − 1) is measured. What is
expected of all K is, therefore, (K − 1) / K of the difference from the level that was measured.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from afield.errors import SpecError
from afield.training.calibration import QUANTILE_POINTS, balanced_quantiles

# The coverage that the card reports.
CARD_COVERAGE = 0.9


def conformity(probabilities: Tensor, labels: Tensor) -> tuple[float, ...]:
    """Quantiles of the scores of the true classes on one domain."""
    scores = 1 - probabilities.double().gather(1, labels[:, None].long()).flatten()
    wrong = probabilities.argmax(dim=1) != labels
    return balanced_quantiles([(scores * wrong).numpy()])


def check_coverage(level: float) -> None:
    """Raise unless a coverage is a share that sets can have."""
    if not 0 < level < 1:
        raise SpecError(f"coverage={level:g}: must be between 0 and 1, e.g. 0.9")


@dataclass(frozen=True)
class PredictionSets:
    """The quantiles of the scores on each held-out domain, in equal steps from 0 to 1."""

    domains: Mapping[str, Sequence[float]]

    @property
    def promise(self) -> float:
        """The largest coverage of a new domain that so many domains can promise."""
        return len(self.domains) / (len(self.domains) + 1)

    def thresholds(self, level: float) -> tuple[float, float]:
        """The quantile over all held-out domains, and that of the worst of them."""
        check_coverage(level)
        worst = max(_at(quantiles, level) for quantiles in self.domains.values())
        return _pooled([*self.domains.values()], level), worst

    def coverages(self, level: float) -> dict[str, float]:
        """The coverage on each held-out domain with the quantile of the others."""
        measured = {}
        for name, quantiles in self.domains.items():
            others = [each for other, each in self.domains.items() if other != name]
            if others:
                measured[name] = share_below(quantiles, _pooled(others, level))
        return measured

    def expected(self, level: float) -> tuple[float, float]:
        """The coverage that is expected on one more domain, with its standard error over domains.

        With fewer than two held-out domains it is unknown, and NaN.
        """
        measured, count = [*self.coverages(level).values()], len(self.domains)
        if count < 2:
            return float("nan"), float("nan")
        shrink = (count - 1) / count
        missed = float(np.mean(measured)) - level
        return level + shrink * missed, shrink * float(np.std(measured, ddof=1)) / count**0.5


def select_classes(probabilities: Sequence[float], threshold: float) -> list[int]:
    """The numbers of the classes in the set, the most probable first; at least one.

    >>> select_classes([0.1, 0.6, 0.3], 0.75), select_classes([0.1, 0.6, 0.3], 0.1)
    ([1, 2], [1])
    """
    order = np.argsort(-np.asarray(probabilities), kind="stable")
    # A score that equals the threshold may differ from it in the last digit.
    kept = [int(index) for index in order if 1 - probabilities[index] <= threshold + 1e-9]
    return kept or [int(order[0])]


def share_below(quantiles: Sequence[float], threshold: float) -> float:
    """The share of the values with these quantiles that is not above the threshold.

    >>> share_below([0.0, 0.5, 1.0], 0.75), share_below([0.0, 0.5, 1.0], 2.0)
    (0.75, 1.0)
    """
    values = np.asarray(quantiles, dtype=np.float64)
    last = int(np.searchsorted(values, threshold, side="right"))
    if last in (0, len(values)):
        return float(last > 0)
    below, above = values[last - 1], values[last]
    return float((last - 1 + (threshold - below) / (above - below)) / (len(values) - 1))


def _at(quantiles: Sequence[float], level: float) -> float:
    return float(np.interp(level, np.linspace(0, 1, len(quantiles)), quantiles))


def _pooled(domains: Sequence[Sequence[float]], level: float) -> float:
    """The quantile of a mixture in which all domains have the same weight."""
    return _at(balanced_quantiles([np.asarray(each, dtype=np.float64) for each in domains]), level)


def check_quantiles(domains: Mapping[str, Sequence[float]]) -> None:
    """Raise unless the quantiles of every domain are shares in ascending order."""
    for name, quantiles in domains.items():
        valid = len(quantiles) == QUANTILE_POINTS and list(quantiles) == sorted(quantiles)
        if not valid or not 0 <= quantiles[0] <= quantiles[-1] <= 1:
            raise SpecError(f"{name}: the quantiles of its scores are no shares in rising order")
