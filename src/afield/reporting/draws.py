"""What hyperparameter draws show: which settings matter.

Every run is a point, taken at its checkpoint with the best validation accuracy: that accuracy, the
accuracy on the unseen main split, and the settings of the run.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from afield.experiments.record import Record
from afield.experiments.selection import selection_values, validation_accuracies
from afield.reporting.axes import Axis, category_axis, numeric_axis
from afield.reporting.gaps import compared_cases, unseen_accuracies
from afield.reporting.results import Results

__all__ = [
    "Panel",
    "Point",
    "ValidatedRun",
    "best_checkpoint_accuracies",
    "setting_panels",
    "validated_runs",
]

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
