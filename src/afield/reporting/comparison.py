"""Is one method better than another? Differences on the same trials and unseen domains.

    difference = mean over pairs of (accuracy of one - accuracy of the other)

Its 95 % interval is a bootstrap: runs are drawn with replacement, then, where one run was tested on
several domains, its domains. Percentiles of few runs lie too close together; they are taken so
far out that for normal differences the interval is that of Student's t (Hesterberg, 2015: What
teachers should know about the bootstrap).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from afield.experiments.record import Run
from afield.reporting.results import UPPER_BOUND, Picks, Results, chosen_settings

__all__ = ["REFERENCE", "Comparison", "bootstrap_interval", "compare", "comparisons", "references"]

REFERENCE = "erm"
CONFIDENCE_LEVEL, RESAMPLES = 0.95, 4000
# Of fewer, not even all wins would be more than chance (two-sided, at 5 %).
MIN_PAIRS = 6


@dataclass(frozen=True)
class Comparison:
    """A method against another on the same `pairs` of trial and domain; accuracies are shares.

    `low` and `high` are the ends of the interval, NaN where there is one pair only.
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
        """What may be said of it: better, worse, unclear, level throughout, or too few pairs."""
        if self.ties == self.pairs:
            return "level"
        if self.trials < 2 or self.pairs < MIN_PAIRS:
            return "too few"
        if self.low > 0:
            return "better"
        return "worse" if self.high < 0 else "unclear"


def comparisons(results: Results, rule: str) -> list[Comparison]:
    """Every method that there is something to compare with, the best difference first."""
    picks, against = results.picks(rule), references(results)
    found = [
        compare(picks[method], picks[other], method, other) for method, other in against.items()
    ]
    known = [each for each in found if each is not None]
    return sorted(known, key=lambda each: -each.difference)


def references(results: Results) -> dict[str, str]:
    """What each method is compared with: erm with the same settings, or else the plainest erm."""
    first = {name: records[0].run for name, records in results.methods.items()}
    known = {name: run for name, run in first.items() if run.method == REFERENCE and not run.role}
    if not known:
        return {}
    plain = min(known, key=lambda name: (first[name].average != "last", len(name)))
    alike = {_shared(run): name for name, run in known.items()}
    found = {}
    for name, run in first.items():
        other = alike.get(_shared(run), plain)
        if name != plain and not name.startswith(UPPER_BOUND):
            # A variant of erm has itself for the like: it is compared with the plain one.
            found[name] = plain if other == name else other
    return found


def _shared(run: Run) -> tuple[object, ...]:
    """What a row has in common with those of other methods."""
    general = {name: value for name, value in chosen_settings(run).items() if "." not in name}
    return run.average, *sorted((name, str(value)) for name, value in general.items())


def compare(one: Picks, other: Picks, method: str, reference: str) -> Comparison | None:
    """The comparison of what was picked for two methods; None where they share no pair."""
    by_run: dict[str, list[float]] = {}
    trials = set()
    for trial, picks in one.items():
        for domain, pick in picks.items():
            rival = other.get(trial, {}).get(domain)
            if pick is not None and rival is not None:
                trials.add(trial)
                by_run.setdefault(f"{trial} {pick.run.key}", []).append(
                    pick.accuracy - rival.accuracy
                )
    if not by_run:
        return None
    low, high = bootstrap_interval(by_run)
    every = np.concatenate([np.asarray(own) for own in by_run.values()])
    return Comparison(
        method=method,
        reference=reference,
        difference=float(np.mean([np.mean(own) for own in by_run.values()])),
        low=low,
        high=high,
        pairs=len(every),
        trials=len(trials),
        wins=int((every > 0).sum()),
        ties=int((every == 0).sum()),
        losses=int((every < 0).sum()),
    )


def bootstrap_interval(by_run: Mapping[str, Sequence[float]]) -> tuple[float, float]:
    """The ends of the interval of the mean over runs of their mean differences."""
    runs = [np.asarray(own, dtype=np.float64) for own in by_run.values()]
    independent = len(runs) if len(runs) > 1 else len(runs[0])
    if independent < 2:
        return math.nan, math.nan
    generator = np.random.default_rng(0)
    drawn = generator.integers(len(runs), size=(RESAMPLES, len(runs)))
    if max(map(len, runs)) == 1:
        resampled = np.concatenate(runs)[drawn].mean(axis=1)
    else:
        # The domains of a run are drawn anew for every place that it has in a resample.
        anew = (RESAMPLES, len(runs))
        means = [generator.choice(own, size=(*anew, len(own))).mean(axis=2) for own in runs]
        resampled = np.take_along_axis(np.stack(means), drawn[None], axis=0)[0].mean(axis=1)
    student = stats.t.ppf((1 - CONFIDENCE_LEVEL) / 2, independent - 1)
    outside = float(stats.norm.cdf(student * math.sqrt(independent / (independent - 1))))
    low, high = np.quantile(resampled, [outside, 1 - outside])
    return float(low), float(high)
