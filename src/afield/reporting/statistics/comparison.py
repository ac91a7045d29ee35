"""Is one method better than another? Differences on the same trials and unseen domains.

    difference = mean over pairs of (accuracy of one - accuracy of the other)

Its 95 % interval is Student's, with the standard error of `afield.reporting.statistics.noise`.
Intervals come in three kinds: for this comparison alone; corrected for the number of comparisons
(Bonferroni: each gets its share of the 5 %), which holds for the best of them too; and for a new
domain like these, with the domain as the unit.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from afield.experiments.record import Run
from afield.reporting.results import UPPER_BOUND, Picks, Results, chosen_settings
from afield.reporting.statistics.noise import (
    MIN_STDERR,
    Accuracies,
    Noise,
    arrange,
    benchmark_noise,
    estimate_noise,
    mean_error,
    new_domain_error,
)
from afield.training.metrics import DEFAULT_METRIC, find_metric

__all__ = [
    "REFERENCE",
    "Comparison",
    "Interval",
    "accuracies",
    "compare",
    "compare_all",
    "comparisons",
    "critical_value",
    "references",
]

REFERENCE = "erm"
CONFIDENCE_LEVEL = 0.95
# With fewer pairs that differ, even a win in each is not significant (two-sided, at 5 %).
MIN_PAIRS = 6


class Interval(NamedTuple):
    """The ends of an interval; NaN if it is unknown."""

    low: float
    high: float


@dataclass(frozen=True)
class Comparison:
    """A method against another on the same `pairs` of trial and domain; accuracies are shares.

    Attributes
    ----------
    stderr, freedom
        The standard error of the difference on these domains and its degrees of freedom; NaN if
        there is only one trial.
    new_stderr, new_freedom
        The same where the domains, too, are a sample; NaN if there is only one domain.
    rivals
        The number of comparisons that this one was made with, for which intervals are corrected.
    """

    method: str
    reference: str
    difference: float
    pairs: int
    trials: int
    wins: int
    ties: int
    losses: int
    stderr: float = math.nan
    freedom: float = math.nan
    new_stderr: float = math.nan
    new_freedom: float = math.nan
    rivals: int = 1

    def interval(self, *, corrected: bool = True, new_domain: bool = False) -> Interval:
        """The 95 % interval of the difference.

        Parameters
        ----------
        corrected
            Whether it is corrected for the number of comparisons, so that it also holds for the
            comparison that looks best.
        new_domain
            Whether it is about the mean over new domains like these, instead of these domains.
        """
        error = (self.new_stderr, self.new_freedom) if new_domain else (self.stderr, self.freedom)
        reach = critical_value(error[1], self.rivals if corrected else 1) * error[0]
        return Interval(self.difference - reach, self.difference + reach)

    @property
    def verdict(self) -> str:
        """One of "better", "worse", "unclear", "level" (in all pairs) and "too few" (pairs)."""
        if self.ties == self.pairs:
            return "level"
        # Trials that all give the same difference do not show how much it varies.
        few = self.pairs - self.ties < MIN_PAIRS
        if self.trials < 2 or few or not self.stderr > MIN_STDERR:
            return "too few"
        low, high = self.interval()
        if low > 0:
            return "better"
        return "worse" if high < 0 else "unclear"


def critical_value(freedom: float, rivals: int) -> float:
    """How many standard errors the interval reaches to either side."""
    # Most tables have no intervals, and importing scipy takes a third of their time.
    from scipy import special

    return -float(special.stdtrit(freedom, (1 - CONFIDENCE_LEVEL) / 2 / rivals))


def comparisons(results: Results, rule: str) -> list[Comparison]:
    """Every method against its reference, the greatest difference first."""
    measured = accuracies(results, rule)
    return compare_all(measured, references(results), benchmark_noise(measured))


def accuracies(results: Results, rule: str) -> dict[str, Accuracies]:
    """The accuracies of all picks by method, without the upper bound.

    Another metric may take the place of the accuracy. If lower is better, its sign is reversed, so
    that a positive difference always speaks for the method.
    """
    picks = results.picks(rule)
    sign = -1 if find_metric(results.metric or DEFAULT_METRIC).lower_is_better else 1
    fair = [method for method in picks if not method.startswith(UPPER_BOUND)]
    return {method: _cells(picks[method], sign) for method in fair}


def compare_all(
    measured: Mapping[str, Accuracies], pairs: Mapping[str, str], noise: Noise | None = None
) -> list[Comparison]:
    """Compare each method with another, and correct for the number of comparisons.

    Parameters
    ----------
    measured
        The accuracies of every method.
    pairs
        The reference of each method.
    noise
        How results vary; estimated from `measured` by default.
    """
    noise = benchmark_noise(measured) if noise is None else noise
    compared = [
        compare(measured[method], measured[other], method, other, noise=noise, rivals=len(pairs))
        for method, other in pairs.items()
    ]
    valid = [comparison for comparison in compared if comparison is not None]
    return sorted(valid, key=lambda comparison: -comparison.difference)


def references(results: Results) -> dict[str, str]:
    """The reference of each method: erm with the same settings, otherwise the plainest erm."""
    first = {name: records[0].run for name, records in results.methods.items()}
    erms = {name: run for name, run in first.items() if run.method == REFERENCE and not run.role}
    if not erms:
        return {}
    plain = min(erms, key=lambda name: (first[name].average != "last", len(name)))
    by_settings = {_shared_settings(run): name for name, run in erms.items()}
    by_method = {}
    for name, run in first.items():
        reference = by_settings.get(_shared_settings(run), plain)
        if name != plain and not name.startswith(UPPER_BOUND):
            # An erm variant would match itself, so compare it with plain erm.
            by_method[name] = plain if reference == name else reference
    return by_method


def _shared_settings(run: Run) -> tuple[object, ...]:
    """The settings that a row can have in common with rows of other methods."""
    general = {name: value for name, value in chosen_settings(run).items() if "." not in name}
    return run.average, *sorted((name, str(value)) for name, value in general.items())


def compare(
    one: Accuracies,
    other: Accuracies,
    method: str,
    reference: str,
    *,
    noise: Noise | None = None,
    rivals: int = 1,
) -> Comparison | None:
    """Compare two methods; None if they share no pair of trial and domain.

    Parameters
    ----------
    one, other
        Their accuracies.
    method, reference
        Their names.
    noise
        How results of the benchmark vary; by default it is estimated from these two methods.
    rivals
        The number of comparisons to correct for.
    """
    cells = {key: accuracy - other[key] for key, accuracy in one.items() if key in other}
    if not cells:
        return None
    grid = arrange(cells)
    if noise is None or noise.domains != grid.shape[1]:
        noise = estimate_noise(np.stack([grid, np.zeros_like(grid)]))
    stderr, freedom = mean_error(grid, noise)
    new_stderr, new_freedom = new_domain_error(cells, grid, noise)
    values = np.array(list(cells.values()))
    return Comparison(
        method=method,
        reference=reference,
        difference=float(grid.mean()),
        pairs=len(values),
        trials=len(grid),
        wins=int((values > 0).sum()),
        ties=int((values == 0).sum()),
        losses=int((values < 0).sum()),
        stderr=stderr,
        freedom=freedom,
        new_stderr=new_stderr,
        new_freedom=new_freedom,
        rivals=rivals,
    )


def _cells(picks: Picks, sign: int) -> Accuracies:
    """What is known; a record may lack the metric that is shown."""
    return {
        (trial, domain): sign * pick.accuracy
        for trial, by_domain in picks.items()
        for domain, pick in by_domain.items()
        if pick is not None and not math.isnan(pick.accuracy)
    }
