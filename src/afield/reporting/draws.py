"""What hyperparameter draws show: whether validation is a guide, and which settings matter.

Every run is a point, taken at its checkpoint with the best validation accuracy: that accuracy, the
accuracy on the unseen main split, and the settings of the run.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from scipy import stats

from afield.experiments.record import Record
from afield.experiments.selection import selection_value, validation_accuracy
from afield.reporting.axes import Axis, category_axis, numeric_axis
from afield.reporting.gaps import selection_cases, unseen_accuracy
from afield.reporting.results import UPPER_BOUND, Results

__all__ = [
    "Panel",
    "Point",
    "best_checkpoint_accuracies",
    "setting_panels",
    "validation_panels",
    "validation_rank_correlation",
]

# With more domains than this, one panel shows them all.
MAX_PANELS = 12
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
class _Validated:
    """A run's accuracies at its checkpoint with the best validation accuracy."""

    record: Record
    method: str
    target: str
    validation: float
    accuracy: float


def best_checkpoint_accuracies(record: Record) -> tuple[float, float] | None:
    """Validation and unseen accuracy of the checkpoint that is best in validation, if known."""
    best = max(record.candidates, key=lambda checkpoint: selection_value(checkpoint, record.run))
    accuracy = unseen_accuracy(record, best, "main")
    return None if accuracy is None else (validation_accuracy(best, record.run), accuracy)


def validation_panels(results: Results) -> list[Panel]:
    """Validation accuracy against unseen accuracy, one panel per unseen domain."""
    runs = list(_validated_runs(results))
    by_target: dict[str, list[_Validated]] = {}
    for run in runs:
        by_target.setdefault(run.target, []).append(run)
    if len(by_target) > MAX_PANELS:
        by_target = {"all unseen domains": runs}
    x = numeric_axis([100 * run.validation for run in runs], ticks=4, log=False)
    y = numeric_axis([100 * run.accuracy for run in runs], ticks=4, log=False)
    return [
        Panel(target, x, y, [_point(run, x, y) for run in of_target])
        for target, of_target in by_target.items()
    ]


def validation_rank_correlation(results: Results) -> float | None:
    """Spearman's correlation of validation and unseen accuracy, averaged over cases.

    A case is the draws of one method, trial and target, at least three: all else is equal.
    """
    cases: dict[tuple[str, int, str], list[_Validated]] = {}
    for run in _validated_runs(results):
        cases.setdefault((run.method, run.record.run.trial, run.target), []).append(run)
    correlations = []
    for runs in cases.values():
        validation, unseen = [run.validation for run in runs], [run.accuracy for run in runs]
        if len(runs) > 2 and len(set(validation)) > 1 and len(set(unseen)) > 1:
            correlations.append(float(stats.spearmanr(validation, unseen).statistic))
    return fmean(correlations) if correlations else None


def setting_panels(results: Results) -> dict[str, list[Panel]]:
    """For each method with several draws: every drawn setting against the unseen accuracy."""
    by_method: dict[str, dict[DrawKey, list[_Validated]]] = {}
    for validated in _validated_runs(results):
        run = validated.record.run
        draws = by_method.setdefault(validated.method, {})
        draws.setdefault((run.trial, run.draw), []).append(validated)
    panels = {
        method: _setting_panels(method, draws)
        for method, draws in by_method.items()
        if len({draw for _, draw in draws}) > 1
    }
    return {method: of_method for method, of_method in panels.items() if of_method}


def _validated_runs(results: Results) -> Iterator[_Validated]:
    for case in selection_cases(results):
        for record in case.records:
            accuracies = best_checkpoint_accuracies(record)
            if accuracies is not None and not case.method.startswith(UPPER_BOUND):
                yield _Validated(record, case.method, case.target, *accuracies)


def _point(validated: _Validated, x: Axis, y: Axis) -> Point:
    run = validated.record.run
    tooltip = (
        f"{validated.method}, trial {run.trial}, draw {run.draw}: validation "
        f"{100 * validated.validation:.1f} %, unseen {100 * validated.accuracy:.1f} %"
    )
    position = x.to_percent(100 * validated.validation), y.to_percent(100 * validated.accuracy)
    return Point(*position, validated.method, tooltip, run.draw == 0)


def _setting_panels(method: str, draws: Mapping[DrawKey, Sequence[_Validated]]) -> list[Panel]:
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
