"""Which differences can a benchmark detect? From the spread of the trials that it has.

A difference is detected if its corrected interval excludes 0. With more trials, the standard error
falls with their square root, and the degrees of freedom grow in proportion.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from afield.reporting.statistics.comparison import Comparison, critical_value
from afield.reporting.statistics.noise import MIN_STDERR

__all__ = ["MAX_TRIALS", "ONE_POINT", "Power", "estimate_power", "typical_power"]

PROBABILITY = 0.8
MAX_TRIALS = 1000
ONE_POINT = 0.01
QUANTILES = (np.arange(1000) + 0.5) / 1000


@dataclass(frozen=True)
class Power:
    """What a benchmark can detect, from the spread of its trials; differences are shares.

    Attributes
    ----------
    trials
        The number of trials so far.
    stderr, freedom
        The standard error of a difference with this number of trials, and its degrees of freedom.
    rivals
        The number of comparisons for which intervals are corrected.
    """

    trials: int
    stderr: float
    freedom: float
    rivals: int = 1

    @property
    def known(self) -> bool:
        """Whether the trials show any spread: there are two or more, and they differ."""
        return self.trials > 1 and self.stderr > MIN_STDERR

    def probability(self, difference: float, trials: int | None = None) -> float:
        """The probability to detect a true difference with this number of trials; NaN if unknown.

        It is the mean over standard errors that the trials could have given; unlike the functions
        for the noncentral t distribution, it is finite for all degrees of freedom.
        """
        from scipy import special

        if not self.known:
            return math.nan
        trials = self.trials if trials is None else trials
        freedom = self.freedom * (trials - 1) / (self.trials - 1)
        shift = abs(difference) / self.stderr * math.sqrt(trials / self.trials)
        reach = critical_value(freedom, self.rivals)
        ratios = np.sqrt(special.gammaincinv(freedom / 2, QUANTILES) * 2 / freedom)
        detected = special.ndtr(shift - reach * ratios) + special.ndtr(-shift - reach * ratios)
        return float(detected.mean())

    @property
    def detectable(self) -> float:
        """The difference that is detected with a probability of 80 %; NaN if unknown."""
        from scipy import optimize

        if not self.known:
            return math.nan
        high = self.stderr
        while self.probability(high) < PROBABILITY:
            high *= 2
        found = optimize.brentq(lambda each: self.probability(each) - PROBABILITY, 0.0, high)
        return float(found)

    def trials_for(self, difference: float = ONE_POINT) -> int | None:
        """The fewest trials that detect a difference with 80 %; None if more than MAX_TRIALS."""
        if not self.known or self.probability(difference, MAX_TRIALS) < PROBABILITY:
            return None
        counts = range(2, MAX_TRIALS + 1)
        found = bisect_left(
            counts, PROBABILITY, key=lambda trials: self.probability(difference, trials)
        )
        return counts[found]


def estimate_power(comparison: Comparison) -> Power:
    """The power of one comparison."""
    return Power(comparison.trials, comparison.stderr, comparison.freedom, rivals=comparison.rivals)


def typical_power(comparisons: Sequence[Comparison]) -> Power | None:
    """The power of a benchmark: that of its typical comparison; None if no spread is known.

    The typical standard error is the root of the mean square over comparisons.
    """
    known = [each for each in map(estimate_power, comparisons) if each.known]
    if not known:
        return None
    return Power(
        trials=min(each.trials for each in known),
        stderr=math.sqrt(np.mean([each.stderr**2 for each in known])),
        freedom=float(np.mean([each.freedom for each in known])),
        rivals=known[0].rivals,
    )
