"""Curves of the accuracy during training, with the checkpoints that the rules picked.

The page's script draws the curves from `curve_data`. To keep it small, accuracies are whole
thousandths, steps that runs share are stored once, and long curves are thinned; picked checkpoints
always stay.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from afield.reporting.charts.axes import Mark, numeric_axis
from afield.reporting.charts.gaps import (
    PickedCheckpoint,
    SelectionCase,
    compared_cases,
    gap,
    picked_checkpoints,
    unseen_accuracies,
    whole_split,
)
from afield.reporting.results import Results
from afield.runs.record import Record
from afield.runs.selection import source_accuracies, validation_accuracies
from afield.training.scores import score_at

__all__ = ["Curve", "curve", "curve_data"]

# Points of one curve, and of all curves together.
MAX_CURVE_POINTS = 120
MAX_TOTAL_POINTS = 60_000
# One object per number: the curves of ten thousand runs have half a million of them.
THOUSANDTHS = tuple(range(1001))


@dataclass(frozen=True)
class Curve:
    """Accuracies of a run at its steps: on sources, validation domains and unseen domains.

    The unseen accuracies are of the `split` (main or sample) that every checkpoint was evaluated
    on; they are empty if there is none. `size` is the number of samples that gives them the
    standard error √(a (1 - a) / size), and `whole` tells whether they are of the whole test split.
    """

    steps: Sequence[int]
    sources: Sequence[float]
    validation: Sequence[float]
    unseen: Sequence[float]
    split: str
    size: float = 0.0
    whole: bool = True


def curve(record: Record) -> Curve:
    """The curve of a run."""
    run, points = record.run, record.checkpoints
    validated = record.tests != record.unseen
    unseen, split = _unseen_curve(record)
    return Curve(
        steps=list(record.steps),
        sources=source_accuracies(points, run.sources),
        validation=validation_accuracies(points, run) if validated else [],
        unseen=unseen,
        split=split,
        size=_effective_size(record, split),
        whole=bool(whole_split(record)),
    )


def curve_data(
    results: Results, rules: Sequence[str], marks: Mapping[str, Mark]
) -> dict[str, Any] | None:
    """Curves, picked checkpoints and best checkpoints for the page; None without any curve."""
    cases = compared_cases(results)
    shown = [(case, r) for case in cases for r in case.records if len(r.checkpoints) > 1]
    if not shown:
        return None
    picked = {rule: picked_checkpoints(results, rule) for rule in rules}
    targets = list(dict.fromkeys(case.target for case, _ in shown))
    max_points = max(12, min(MAX_CURVE_POINTS, MAX_TOTAL_POINTS // len(shown)))
    steps: list[Sequence[int]] = []
    runs, values = [], []
    for case, record in shown:
        kept = {each.step for of_rule in picked.values() if (each := of_rule.get(case.key))}
        thin = _thin(curve(record), max_points, kept)
        values += [*thin.sources, *thin.validation, *thin.unseen]
        if thin.steps not in steps:
            steps.append(thin.steps)
        run = record.run
        lines = {"a": thin.sources, "v": thin.validation, "u": thin.unseen}
        runs.append(
            {"m": marks[case.method].number, "t": targets.index(case.target)}
            | {"i": run.trial, "d": run.draw, "k": run.key}
            | {"n": round(thin.size, 1), "w": thin.whole}
            | {"s": steps.index(thin.steps)}
            | {name: [_thousandths(v) for v in line] for name, line in lines.items() if line}
        )
    axis = numeric_axis([100 * value for value in values], ticks=5, log=False)
    return {
        "methods": {str(mark.number): name for name, mark in marks.items()},
        "targets": targets,
        "rules": list(rules),
        "steps": steps,
        "runs": runs,
        "picks": [
            {"m": marks[case.method].number, "t": targets.index(case.target)}
            | _pick_data(case, number, checkpoint)
            for case in cases
            for number, rule in enumerate(rules)
            if (checkpoint := picked[rule].get(case.key)) and case.target in targets
        ],
        "y": {"low": axis.low, "high": axis.high, "ticks": [vars(tick) for tick in axis.ticks]},
    }


def _pick_data(case: SelectionCase, rule: int, picked: PickedCheckpoint) -> dict[str, Any]:
    measured = gap(case, picked)
    best = measured.best if measured else None
    return {
        "i": case.trial,
        "r": rule,
        "k": picked.key,
        "s": picked.step,
        "a": _thousandths(picked.accuracy),
        "g": _thousandths(measured.behind) if measured else None,
        "b": {"k": best.key, "s": best.step, "a": _thousandths(best.accuracy)} if best else None,
    }


def _unseen_curve(record: Record) -> tuple[list[float], str]:
    """Unseen accuracies at all checkpoints, of the first split that all were evaluated on."""
    for split in ("main", "sample"):
        values = unseen_accuracies(record, split)
        evaluated = [value for value in values if value is not None]
        if len(evaluated) == len(values):
            return evaluated, split
    return [], ""


def _effective_size(record: Record, split: str) -> float:
    """The number of samples of a mean over the tested domains: k² / Σ 1/n for k domains."""
    scores = [score_at(record.checkpoints, -1, name, split) for name in record.tests if split]
    sizes = [score.size for score in scores if score is not None and score.size]
    return len(sizes) ** 2 / sum(1 / size for size in sizes) if sizes else 0.0


def _thin(full: Curve, max_points: int, kept: set[int]) -> Curve:
    """The curve with about `max_points` points: its last, those at `kept` steps, and every nth."""
    every = -(-len(full.steps) // max_points)
    last = len(full.steps) - 1
    indices = [i for i, step in enumerate(full.steps) if (last - i) % every == 0 or step in kept]

    def thin(values: Sequence[float]) -> list[float]:
        return [values[i] for i in indices] if values else []

    return replace(
        full,
        steps=[full.steps[i] for i in indices],
        sources=thin(full.sources),
        validation=thin(full.validation),
        unseen=thin(full.unseen),
    )


def _thousandths(share: float) -> int:
    number = round(1000 * share)
    return THOUSANDTHS[number] if 0 <= number <= 1000 else number
