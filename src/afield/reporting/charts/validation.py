"""Does validation predict the test accuracy? A sentence with a rank correlation, and one chart.

Runs are compared within a trial and unseen domain, where all else is equal: both accuracies are
shown minus their mean over the runs of the same trial and domain. The rank correlation is that of
the ranks within these groups; its interval is Fisher's, with the variance of Fieller, Hartley and
Pearson (1957) for ranks, as if runs were independent.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from afield.reporting.axes import numeric_axis
from afield.reporting.draws import Panel, Point, ValidatedRun

__all__ = ["RankCorrelation", "ValidationPlot", "build_validation_plot", "rank_correlation"]

# Degrees of freedom below which an interval says nothing.
MIN_FREEDOM = 5
RANK_VARIANCE = 1.06


@dataclass(frozen=True)
class RankCorrelation:
    """Spearman's correlation within groups, and the ends of its interval (NaN if unknown)."""

    value: float
    low: float
    high: float
    runs: int


@dataclass(frozen=True)
class ValidationPlot:
    """The answer in a sentence, and the chart."""

    answer: str
    panel: Panel


def build_validation_plot(runs: Iterable[ValidatedRun]) -> ValidationPlot | None:
    """The answer for the trained runs of one dataset; None if no two can be compared."""
    # Merged models differ from trained ones by so much that they would hide the rest.
    trained = [run for run in runs if not run.record.run.experts]
    groups = _groups(trained)
    if not groups:
        return None
    return ValidationPlot(_answer(rank_correlation(groups), len(trained)), _panel(groups))


def rank_correlation(groups: Sequence[Sequence[ValidatedRun]]) -> RankCorrelation | None:
    """The correlation of validation and test accuracy in ranks; None if either never varies."""
    ranks = []
    for group in groups:
        pairs = np.array([[run.validation, run.accuracy] for run in group])
        ranked = pd.DataFrame(pairs).rank().to_numpy()
        # Ranks of groups of all sizes get the same scale.
        ranks.append((ranked - ranked.mean(axis=0)) / len(group))
    x, y = np.concatenate(ranks).T
    if not x.any() or not y.any():
        return None
    value = float((x * y).sum() / math.sqrt((x**2).sum() * (y**2).sum()))
    freedom = len(x) - len(groups) - 2
    if freedom < MIN_FREEDOM:
        return RankCorrelation(value, math.nan, math.nan, len(x))
    middle = math.atanh(min(max(value, -0.9999), 0.9999))
    reach = 1.96 * math.sqrt(RANK_VARIANCE / freedom)
    return RankCorrelation(value, math.tanh(middle - reach), math.tanh(middle + reach), len(x))


def _groups(runs: Sequence[ValidatedRun]) -> list[list[ValidatedRun]]:
    """The runs of each trial and unseen domain, where there are several."""
    groups: dict[tuple[int, str], list[ValidatedRun]] = {}
    for run in runs:
        groups.setdefault((run.record.run.trial, run.target), []).append(run)
    return [group for group in groups.values() if len(group) > 1]


def _answer(found: RankCorrelation | None, runs: int) -> str:
    if found is None or math.isnan(found.low):
        return f"Cannot tell from {runs} runs."
    ends = f"95 % interval {_signed(found.low)} to {_signed(found.high)}"
    measured = f"the rank correlation is {_signed(found.value)} ({ends}, {found.runs} runs)"
    if found.low <= 0 <= found.high:
        return f"Cannot tell: {measured}."
    if found.high < 0:
        return f"No, runs that validate better do worse on unseen domains: {measured}."
    word = "Yes" if found.low > 0.5 else "Partly" if found.value > 0.3 else "Barely"
    return f"{word}: {measured}."


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")


def _panel(groups: Sequence[Sequence[ValidatedRun]]) -> Panel:
    placed = []
    for group in groups:
        validation = float(np.mean([run.validation for run in group]))
        accuracy = float(np.mean([run.accuracy for run in group]))
        placed += [
            (100 * (run.validation - validation), 100 * (run.accuracy - accuracy), run)
            for run in group
        ]
    x = numeric_axis([across for across, _, _ in placed], ticks=5, log=False, sign=True)
    y = numeric_axis([up for _, up, _ in placed], ticks=5, log=False, sign=True)
    points = [
        Point(x.to_percent(across), y.to_percent(up), run.method, run.tooltip, run.is_default)
        for across, up, run in placed
    ]
    return Panel("All runs", x, y, points)
