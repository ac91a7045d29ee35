"""How much a difference between two methods varies: its standard error and degrees of freedom.

    standard error² = (1 + (D - 1) correlation) · variance / (T · D)

T trials and D domains; the variance is that over trials, one domain at a time, so the error is
about these domains. Results of one trial share a data split, a seed or a model. Their correlation
is estimated from all methods together, since two or three trials of one pair of methods say little
about it. With two methods, the formula is that of Student's test with the trial as the unit.

The degrees of freedom are Satterthwaite's: 1 / freedom = w / (T - 1) + (1 - w) / (T - 1) / E. Here
w is one over the number of independent differences between methods, and E is the number of
independent and equally noisy domains that say as much about the variance as these domains.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "MIN_STDERR",
    "Accuracies",
    "Noise",
    "arrange",
    "benchmark_noise",
    "estimate_noise",
    "mean_error",
    "new_domain_error",
]

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
