"""Is one method better than another? Differences on the same trials and unseen domains.

    difference = mean over pairs of (accuracy of one - accuracy of the other)

Its 95 % interval is Student's, with the standard error of `Noise`.
Intervals come in three kinds: for this comparison alone; corrected for the number of comparisons
(Bonferroni: each gets its share of the 5 %), which holds for the best of them too; and for a new
domain like these, with the domain as the unit.

    standard error² = (1 + (D - 1) correlation) · variance / (T · D)

T trials and D domains; the variance is taken over trials, one domain at a time, so the error is
about these domains. Results of one trial share a data split, a seed or a model. Their correlation
is estimated from all methods together, since two or three trials of one pair of methods say little
about it. With two methods, this is Student's test with the trial as the unit.

The degrees of freedom are Satterthwaite's: 1 / freedom = w / (T - 1) + (1 - w) / (T - 1) / E. Here
w is one over the number of independent differences between methods, and E is the number of
independent and equally noisy domains that say as much about the variance as these domains.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from afield.reporting.results import Picks, Results
from afield.runs.row import Row
from afield.training.metrics import DEFAULT_METRIC, find_metric

# A standard error below this is rounding: all trials gave the same difference.
MIN_STDERR = 1e-9

Array = NDArray[np.float64]
# The accuracy for each trial and unseen domain.
Accuracies = Mapping[tuple[int, str], float]


@dataclass(frozen=True)
class Noise:
    """How results vary over trials, estimated from all methods of a benchmark together.

    Attributes
    ----------
    correlation
        The correlation of two results of one method and trial, on different domains.
    contrasts
        The number of independent differences between methods that it was estimated from.
    trials, domains
        The numbers of trials and domains that it was estimated from.
    effective_domains
        The number of independent and equally noisy domains that say as much about the variance.
    """

    correlation: float = 0.0
    contrasts: float = 1.0
    trials: int = 0
    domains: int = 0
    effective_domains: float = 1.0


def benchmark_noise(measured: Mapping[str, Accuracies]) -> Noise | None:
    """The noise of all methods that have all domains, on the trials that they share."""
    domains = sorted({domain for cells in measured.values() for _, domain in cells})
    complete = [trials for cells in measured.values() if (trials := _complete(cells, domains))]
    shared = sorted(set.intersection(*complete)) if complete else []
    if len(complete) < 2 or len(shared) < 2:
        return None
    scores = [
        [[cells[trial, domain] for domain in domains] for trial in shared]
        for cells in measured.values()
        if _complete(cells, domains)
    ]
    return estimate_noise(np.array(scores))


def _complete(cells: Accuracies, domains: Sequence[str]) -> set[int]:
    """The trials with a result on every domain."""
    return {t for t in {trial for trial, _ in cells} if all((t, d) in cells for d in domains)}


def estimate_noise(scores: Array) -> Noise:
    """The noise of accuracies with the axes method, trial and domain; all of them are known."""
    methods, trials, domains = scores.shape
    if methods < 2 or trials < 2:
        return Noise(domains=domains)
    # What all methods share in a trial cancels in every difference.
    residuals = scores - scores.mean(axis=0)
    residuals = residuals - residuals.mean(axis=1, keepdims=True)
    by_domain = (residuals**2).sum(axis=1) / (trials - 1)
    variance = by_domain.mean(axis=1)
    of_trial_means = (residuals.mean(axis=2) ** 2).sum(axis=1) / (trials - 1)
    if not variance.sum() > MIN_STDERR**2:
        return Noise(trials=trials, domains=domains)
    inflation = domains * of_trial_means.sum() / variance.sum()
    correlation = (inflation - 1) / (domains - 1) if domains > 1 else 0.0
    shares = by_domain.sum(axis=0) / by_domain.sum()
    concentration = float((shares**2).sum())
    # Correlated domains repeat each other, also about the variance.
    concentration += (1 - concentration) * max(0.0, correlation) ** 2
    # A few noisy methods decide the estimate, so they count more than the others.
    contrasts = variance.sum() ** 2 / (variance**2).sum() * (methods - 1) / methods
    return Noise(correlation, max(1.0, contrasts), trials, domains, 1 / concentration)


def arrange(cells: Accuracies) -> Array:
    """Differences by trial and domain; trials that differ in their domains have one mean each."""
    trials, domains = sorted({t for t, _ in cells}), sorted({d for _, d in cells})
    if len(cells) == len(trials) * len(domains):
        return np.array([[cells[t, d] for d in domains] for t in trials])
    return _means(cells, 0)[:, None]


def _means(cells: Accuracies, axis: int) -> Array:
    """The mean of each trial (axis 0) or of each domain (axis 1)."""
    groups: dict[object, list[float]] = {}
    for key, value in cells.items():
        groups.setdefault(key[axis], []).append(value)
    return np.array([sum(values) / len(values) for values in groups.values()])


def _variance(grid: Array) -> float:
    """The variance over trials within each domain, averaged over domains."""
    deviations = grid - grid.mean(axis=0)
    return float((deviations * deviations).sum()) / (len(grid) - 1) / grid.shape[1]


def mean_error(grid: Array, noise: Noise) -> tuple[float, float]:
    """The standard error of the mean over trials on these domains; its degrees of freedom."""
    trials, domains = grid.shape
    if trials < 2:
        return math.nan, math.nan
    variance = _variance(grid)
    inflation = 1 + (domains - 1) * noise.correlation
    weight = 1 / noise.contrasts
    inverse = weight / (noise.trials - 1) + (1 - weight) / ((trials - 1) * noise.effective_domains)
    return math.sqrt(max(0.0, inflation) * variance / grid.size), float(1 / inverse)


def new_domain_error(cells: Accuracies, grid: Array, noise: Noise) -> tuple[float, float]:
    """The standard error of the mean over domains like these; its degrees of freedom."""
    means = _means(cells, 1)
    if len(grid) < 2 or len(means) < 2:
        return math.nan, math.nan
    stderr, freedom = mean_error(grid, noise)
    # What the domains of a trial share is the same in all domain means, which do not show it.
    balanced = grid.shape[1] == len(means)
    correlation = max(0.0, noise.correlation) if balanced else 1.0
    shared = correlation * _variance(grid) / len(grid)
    variance = float(means.var(ddof=1)) / len(means) + shared
    # New domains cannot be known better than these.
    return max(math.sqrt(variance), stderr), min(len(means) - 1, freedom)


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
    fair = [method for method in picks if not results.rows[method].is_bound]
    return {method: _cells(picks[method], sign) for method in fair}


def compare_all(
    measured: Mapping[str, Accuracies], pairs: Mapping[str, str], noise: Noise | None = None
) -> list[Comparison]:
    """Compare each method with its reference in `pairs`, corrected for the number of comparisons.

    The noise is estimated from all accuracies that were `measured` by default.
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
    rows = results.rows
    erms = {name: r for name, r in rows.items() if r.is_reference and not r.adaptation}
    if not erms:
        return {}
    plain = min(erms, key=lambda name: (rows[name].average != "last", len(name)))
    by_settings = {_shared_settings(row): name for name, row in erms.items()}
    by_method = {}
    for name, row in rows.items():
        reference = by_settings.get(_shared_settings(row), plain)
        if name != plain and not row.is_bound:
            # An erm variant would match itself, so compare it with plain erm.
            by_method[name] = plain if reference == name else reference
    return by_method


def _shared_settings(row: Row) -> tuple[object, ...]:
    """The settings that a row can have in common with rows of other methods."""
    general = {name: value for name, value in row.settings.items() if "." not in name}
    return row.average, *sorted((name, str(value)) for name, value in general.items())


def compare(
    one: Accuracies,
    other: Accuracies,
    method: str,
    reference: str,
    *,
    noise: Noise | None = None,
    rivals: int = 1,
) -> Comparison | None:
    """Compare the accuracies of two methods; None if they share no pair of trial and domain.

    By default the noise is estimated from these two. `rivals` is the number of comparisons to
    correct for.
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
    """The known values; a record may lack the metric that is shown."""
    return {
        (trial, domain): sign * pick.accuracy
        for trial, by_domain in picks.items()
        for domain, pick in by_domain.items()
        if pick is not None and not math.isnan(pick.accuracy)
    }
