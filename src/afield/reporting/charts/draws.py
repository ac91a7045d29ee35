"""Charts of hyperparameter draws: which settings matter.

Every run is a point, taken at its checkpoint with the best validation accuracy: that accuracy, the
accuracy on the unseen main split, and the settings of the run.

Does validation predict the test accuracy?
Runs are compared within a trial and unseen domain, where all else is equal: both accuracies are
shown minus their mean over the runs of the same trial and domain. The rank correlation is computed
from the ranks within these groups; its interval is Fisher's, with the variance of Fieller, Hartley
and Pearson (1957) for ranks, as if runs were independent.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd

from afield.reporting.charts.axes import Axis, category_axis, numeric_axis
from afield.reporting.charts.curves import compared_cases, unseen_accuracies
from afield.reporting.results import Results
from afield.runs.record import Record
from afield.runs.selection import selection_values, validation_accuracies

# Settings of training that draws choose, beside those of methods and weight averaging.
TRAINING_SETTINGS = ("lr", "batch", "weight_decay")

# Trial and draw.
DrawKey = tuple[int, int]


@dataclass(frozen=True)
class Point:
    """A run, or the mean of a draw over its runs; its position is in percent of the panel."""

    x: float
    y: float
    method: str
    tooltip: str
    is_default: bool


@dataclass(frozen=True)
class Panel:
    """A small scatter plot."""

    title: str
    x: Axis
    y: Axis
    points: Sequence[Point]


@dataclass(frozen=True)
class ValidatedRun:
    """A run's accuracies at its checkpoint with the best validation accuracy."""

    record: Record
    method: str
    target: str
    validation: float
    accuracy: float

    @property
    def is_default(self) -> bool:
        """Whether the run has the default hyperparameters."""
        return self.record.run.draw == 0

    @property
    def tooltip(self) -> str:
        """The run and its accuracies in words."""
        run = self.record.run
        return (
            f"{self.method} on {self.target}, trial {run.trial}, draw {run.draw}: validation "
            f"{100 * self.validation:.1f} %, unseen {100 * self.accuracy:.1f} %"
        )


def best_checkpoint_accuracies(record: Record) -> tuple[float, float] | None:
    """Validation and unseen accuracy of the checkpoint that is best in validation, if known."""
    values = dict(zip(record.candidate_numbers, selection_values(record), strict=True))
    best = max(values, key=lambda number: values[number])
    accuracy = unseen_accuracies(record, "main")[best]
    if accuracy is None:
        return None
    (validation,) = validation_accuracies(record.checkpoints, record.run, [best])
    return validation, accuracy


def setting_panels(runs: Iterable[ValidatedRun]) -> dict[str, list[Panel]]:
    """For each method with several draws: every drawn setting against the unseen accuracy."""
    by_method: dict[str, dict[DrawKey, list[ValidatedRun]]] = {}
    for validated in runs:
        run = validated.record.run
        draws = by_method.setdefault(validated.method, {})
        draws.setdefault((run.trial, run.draw), []).append(validated)
    panels = {
        method: _setting_panels(method, draws)
        for method, draws in by_method.items()
        if len({draw for _, draw in draws}) > 1
    }
    return {method: of_method for method, of_method in panels.items() if of_method}


def validated_runs(results: Results) -> list[ValidatedRun]:
    """All runs that were evaluated on the test split where validation is best."""
    return [
        ValidatedRun(record, case.method, case.target, *accuracies)
        for case in compared_cases(results)
        for record in case.records
        if (accuracies := best_checkpoint_accuracies(record)) is not None
    ]


def _setting_panels(method: str, draws: Mapping[DrawKey, Sequence[ValidatedRun]]) -> list[Panel]:
    """A panel for each setting with several values; a point is the mean over targets."""
    means = {key: fmean(run.accuracy for run in runs) for key, runs in draws.items()}
    settings = {key: _settings(runs[0].record) for key, runs in draws.items()}
    y = numeric_axis([100 * mean for mean in means.values()], ticks=4, log=False)
    panels = []
    for name in dict.fromkeys(name for of_draw in settings.values() for name in of_draw):
        values = {key: of_draw[name] for key, of_draw in settings.items() if name in of_draw}
        if len({str(value) for value in values.values()}) > 1:
            x, positions = _positions(values)
            points = [
                Point(
                    positions[trial, draw],
                    y.to_percent(100 * means[trial, draw]),
                    method,
                    f"{name}={_format_value(value)}, trial {trial}, draw {draw}: "
                    f"{100 * means[trial, draw]:.1f} %",
                    draw == 0,
                )
                for (trial, draw), value in values.items()
            ]
            panels.append(Panel(name, x, y, points))
    return panels


def _settings(record: Record) -> dict[str, Any]:
    run = record.run
    return {**{n: getattr(run, n) for n in TRAINING_SETTINGS}, **run.average_params, **run.params}


def _positions(values: Mapping[DrawKey, Any]) -> tuple[Axis, dict[DrawKey, float]]:
    """An axis for the values of a setting and their positions: numbers, or else categories."""
    if all(_is_number(value) for value in values.values()):
        x = numeric_axis(values.values(), ticks=3)
        return x, {key: x.to_percent(value) for key, value in values.items()}
    words = sorted({_format_value(value) for value in values.values()})
    x = category_axis(words)
    return x, {key: x.to_percent(words.index(_format_value(v)) + 0.5) for key, v in values.items()}


def _is_number(value: Any) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and math.isfinite(value)


def _format_value(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


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
    # Merged models differ so much from trained ones that they would hide the rest.
    trained = [run for run in runs if not run.record.run.made_of]
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
