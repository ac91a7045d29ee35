"""What draws of hyperparameters tell: whether validation is a guide, and which settings matter.

Every run is a point, at the checkpoint that is best in validation: there its accuracy in
validation, on the unseen main part, and its settings.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from scipy import stats

from afield.experiments.record import Record
from afield.reporting.axes import Axis, category_axis, numeric_axis
from afield.reporting.curves import best_checkpoint_accuracies, selection_cases
from afield.reporting.results import UPPER_BOUND, Results

__all__ = ["Panel", "Point", "setting_panels", "validation_panels", "validation_rank_correlation"]

# Beyond so many domains, one panel has them all.
MAX_PANELS = 12
# Settings of training that draws choose, beside those of methods and averages.
TRAINING_SETTINGS = ("lr", "batch", "weight_decay")


@dataclass(frozen=True)
class Point:
    """A run, or a draw's mean over runs, in per cent of a panel; `usual` are the defaults."""

    x: float
    y: float
    method: str
    told: str
    usual: bool


@dataclass(frozen=True)
class Panel:
    """A small scatter plot."""

    title: str
    x: Axis
    y: Axis
    points: Sequence[Point]


@dataclass(frozen=True)
class _Read:
    """Where a run is best in validation, and how it does there."""

    record: Record
    method: str
    target: str
    validation: float
    accuracy: float


def validation_panels(results: Results) -> list[Panel]:
    """Accuracy in validation against that on what is unseen, a panel for each unseen domain."""
    reads = list(_reads(results))
    by_target: dict[str, list[_Read]] = {}
    for read in reads:
        by_target.setdefault(read.target, []).append(read)
    if len(by_target) > MAX_PANELS:
        by_target = {"all unseen domains": reads}
    x = numeric_axis([100 * read.validation for read in reads], ticks=4, log=False)
    y = numeric_axis([100 * read.accuracy for read in reads], ticks=4, log=False)
    return [
        Panel(target, x, y, [_point(read, x, y) for read in own])
        for target, own in by_target.items()
    ]


def validation_rank_correlation(results: Results) -> float | None:
    """The rank correlation of validation with unseen accuracy, a mean over cases of three draws.

    Only draws of one method, trial and target are compared: all else is alike.
    """
    groups: dict[tuple[str, int, str], list[_Read]] = {}
    for read in _reads(results):
        groups.setdefault((read.method, read.record.run.trial, read.target), []).append(read)
    found = []
    for own in groups.values():
        first, second = [each.validation for each in own], [each.accuracy for each in own]
        if len(own) > 2 and len(set(first)) > 1 and len(set(second)) > 1:
            found.append(float(stats.spearmanr(first, second).statistic))
    return fmean(found) if found else None


def setting_panels(results: Results) -> dict[str, list[Panel]]:
    """For each method with several draws: every drawn setting against the unseen accuracy."""
    by_method: dict[str, dict[tuple[int, int], list[_Read]]] = {}
    for read in _reads(results):
        run = read.record.run
        draws = by_method.setdefault(read.method, {})
        draws.setdefault((run.trial, run.draw), []).append(read)
    found = {}
    for method, draws in by_method.items():
        if len({draw for _, draw in draws}) > 1:
            found[method] = _of_settings(method, draws)
    return {method: panels for method, panels in found.items() if panels}


def _reads(benchmark: Results) -> Iterator[_Read]:
    for case in selection_cases(benchmark):
        for record in case.records:
            best = best_checkpoint_accuracies(record)
            if best is not None and not case.method.startswith(UPPER_BOUND):
                yield _Read(record, case.method, case.target, *best)


def _point(read: _Read, x: Axis, y: Axis) -> Point:
    run = read.record.run
    told = (
        f"{read.method}, trial {run.trial}, draw {run.draw}: validation "
        f"{100 * read.validation:.1f} %, unseen {100 * read.accuracy:.1f} %"
    )
    places = x.place(100 * read.validation), y.place(100 * read.accuracy)
    return Point(*places, read.method, told, run.draw == 0)


def _of_settings(method: str, draws: Mapping[tuple[int, int], Sequence[_Read]]) -> list[Panel]:
    """A panel for each setting that has several values; a point is the mean over targets."""
    means = {key: fmean(read.accuracy for read in own) for key, own in draws.items()}
    settings = {key: _settings(own[0].record) for key, own in draws.items()}
    y = numeric_axis([100 * mean for mean in means.values()], ticks=4, log=False)
    panels = []
    for name in dict.fromkeys(name for own in settings.values() for name in own):
        values = {key: own[name] for key, own in settings.items() if name in own}
        if len({str(value) for value in values.values()}) > 1:
            x, places = _places(values)
            points = [
                Point(
                    places[trial, draw],
                    y.place(100 * means[trial, draw]),
                    method,
                    f"{name}={_written(value)}, trial {trial}, draw {draw}: "
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


def _places(values: Mapping[tuple[int, int], Any]) -> tuple[Axis, dict[tuple[int, int], float]]:
    """An axis for the values of a setting, and where each lies on it: numbers, or else words."""
    if all(_is_number(value) for value in values.values()):
        x = numeric_axis(values.values(), ticks=3)
        return x, {key: x.place(value) for key, value in values.items()}
    words = sorted({_written(value) for value in values.values()})
    x = category_axis(words)
    return x, {key: x.place(words.index(_written(v)) + 0.5) for key, v in values.items()}


def _is_number(value: Any) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and math.isfinite(value)


def _written(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
