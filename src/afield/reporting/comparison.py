"""Is one method better than another? Differences on the same trials and unseen domains.

    difference = mean over pairs of (accuracy of one - accuracy of the other)

Its 95 % interval is a bootstrap: runs are resampled with replacement, and so are the domains of a
run that was tested on several. Percentile intervals of few runs are too narrow, so the percentiles
are moved outwards until the interval of normal differences is that of Student's t (Hesterberg,
2015: What teachers should know about the bootstrap).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from afield.experiments.record import Run
from afield.experiments.selection import Pick
from afield.reporting.results import UPPER_BOUND, Picks, Results, chosen_settings

__all__ = ["REFERENCE", "Comparison", "bootstrap_interval", "compare", "comparisons", "references"]

REFERENCE = "erm"
CONFIDENCE_LEVEL, RESAMPLES = 0.95, 4000
# With fewer pairs, even a win in every pair is not significant (two-sided, at 5 %).
MIN_PAIRS = 6


@dataclass(frozen=True)
class Comparison:
    """A method against another on the same `pairs` of trial and domain; accuracies are shares.

    `low` and `high` are the ends of the interval, NaN if there is only one pair.
    """

    method: str
    reference: str
    difference: float
    low: float
    high: float
    pairs: int
    trials: int
    wins: int
    ties: int
    losses: int

    @property
    def verdict(self) -> str:
        """One of "better", "worse", "unclear", "level" (in all pairs) and "too few" (pairs)."""
        if self.ties == self.pairs:
            return "level"
        if self.trials < 2 or self.pairs < MIN_PAIRS:
            return "too few"
        if self.low > 0:
            return "better"
        return "worse" if self.high < 0 else "unclear"


def comparisons(results: Results, rule: str) -> list[Comparison]:
    """Every method against its reference, the greatest difference first.

    Each comparison takes thousands of resamples: compute them once and pass them on.
    """
    picks = results.picks(rule)
    compared = [
        compare(picks[method], picks[reference], method, reference)
        for method, reference in references(results).items()
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


def compare(one: Picks, other: Picks, method: str, reference: str) -> Comparison | None:
    """Compare the picks of two methods; None if they share no pair of trial and domain."""
    by_run: dict[str, list[float]] = {}
    trials = set()
    for trial, picks in one.items():
        for domain, pick in picks.items():
            rival = other.get(trial, {}).get(domain)
            if pick is not None and rival is not None and not _unknown(pick, rival):
                trials.add(trial)
                by_run.setdefault(f"{trial} {pick.run.key}", []).append(
                    pick.accuracy - rival.accuracy
                )
    if not by_run:
        return None
    low, high = bootstrap_interval(by_run)
    differences = np.concatenate([np.asarray(of_run) for of_run in by_run.values()])
    return Comparison(
        method=method,
        reference=reference,
        difference=float(np.mean([np.mean(of_run) for of_run in by_run.values()])),
        low=low,
        high=high,
        pairs=len(differences),
        trials=len(trials),
        wins=int((differences > 0).sum()),
        ties=int((differences == 0).sum()),
        losses=int((differences < 0).sum()),
    )


def _unknown(*picks: Pick) -> bool:
    """Whether a record lacks the metric that is shown."""
    return any(math.isnan(pick.accuracy) for pick in picks)


def bootstrap_interval(by_run: Mapping[str, Sequence[float]]) -> tuple[float, float]:
    """The ends of the interval of the mean over runs of their mean differences."""
    runs = [np.asarray(of_run, dtype=np.float64) for of_run in by_run.values()]
    independent = len(runs) if len(runs) > 1 else len(runs[0])
    if independent < 2:
        return math.nan, math.nan
    generator = np.random.default_rng(0)
    drawn = generator.integers(len(runs), size=(RESAMPLES, len(runs)))
    if max(map(len, runs)) == 1:
        resampled = np.concatenate(runs)[drawn].mean(axis=1)
    else:
        # The domains of a run are resampled anew each time the run is drawn.
        shape = (RESAMPLES, len(runs))
        means = [generator.choice(run, size=(*shape, len(run))).mean(axis=2) for run in runs]
        resampled = np.take_along_axis(np.stack(means), drawn[None], axis=0)[0].mean(axis=1)
    student = stats.t.ppf((1 - CONFIDENCE_LEVEL) / 2, independent - 1)
    outside = float(stats.norm.cdf(student * math.sqrt(independent / (independent - 1))))
    low, high = np.quantile(resampled, [outside, 1 - outside])
    return float(low), float(high)
