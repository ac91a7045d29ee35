"""Accuracy during training: where each rule picked a checkpoint, and the best one there was.

A run evaluates an unseen domain on its whole main split wherever a rule needs that, and otherwise
on a small sample. A gap is measured on the whole split where possible. On a sample, the best of
many evaluations is partly luck, so the gap looks larger than it is.

The page's script draws the curves from `curve_data`. To keep it small, accuracies are whole
thousandths, steps that runs share are stored once, and long curves are thinned; picked checkpoints
always stay.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from afield.experiments.record import Record
from afield.experiments.selection import selection_value, source_accuracy
from afield.reporting.axes import Mark, numeric_axis
from afield.reporting.results import UPPER_BOUND, Results
from afield.training.evaluation import Checkpoint

__all__ = [
    "HELD_OUT_TARGET",
    "Curve",
    "Gap",
    "PickedCheckpoint",
    "SelectionCase",
    "curve",
    "curve_data",
    "gap",
    "gap_means",
    "picked_checkpoints",
    "selection_cases",
    "unseen_accuracy",
]

# Stands for all tested domains where many are held out.
HELD_OUT_TARGET = "held-out domains"
# Points of one curve, and of all curves together.
MAX_CURVE_POINTS, MAX_TOTAL_POINTS = 120, 60_000

# Method, trial and target.
CaseKey = tuple[str, int, str]


@dataclass(frozen=True)
class PickedCheckpoint:
    """A checkpoint, by the key of its run and its step, and its accuracy on unseen domains."""

    key: str
    step: int
    accuracy: float


@dataclass(frozen=True)
class SelectionCase:
    """The runs of one method among which a rule picks for one trial and target.

    The target is the domain that was left out, or `HELD_OUT_TARGET`.
    """

    method: str
    trial: int
    target: str
    records: Sequence[Record]

    @property
    def key(self) -> CaseKey:
        """What identifies the case."""
        return self.method, self.trial, self.target


@dataclass(frozen=True)
class Gap:
    """The best checkpoint there was, and how far `behind` it the picked checkpoint is.

    Both are measured on the whole main split if `exact`, otherwise on the sample.
    """

    best: PickedCheckpoint
    behind: float
    exact: bool


@dataclass(frozen=True)
class Curve:
    """Accuracies of a run at its steps: on sources, validation domains and unseen domains.

    The unseen accuracies are of the `split` (main or sample) that every checkpoint was evaluated
    on; they are empty if there is none.
    """

    steps: Sequence[int]
    sources: Sequence[float]
    validation: Sequence[float]
    unseen: Sequence[float]
    split: str


def selection_cases(results: Results) -> list[SelectionCase]:
    """All cases by trial and target, without the runs that leave out two domains."""
    grouped: dict[CaseKey, list[Record]] = {}
    for method, records in results.methods.items():
        for record in records:
            if record.run.tested or len(record.unseen) == 1:
                target = HELD_OUT_TARGET if record.run.tested else record.unseen[0]
                grouped.setdefault((method, record.run.trial, target), []).append(record)
    order = {domain: index for index, domain in enumerate(results.domains)}
    cases = [
        SelectionCase(*key, sorted(records, key=lambda record: (record.run.draw, record.run.key)))
        for key, records in grouped.items()
    ]
    return sorted(cases, key=lambda case: (case.trial, order.get(case.target, 0)))


def picked_checkpoints(results: Results, rule: str) -> dict[CaseKey, PickedCheckpoint]:
    """The checkpoint that a rule picked for each case, where it could pick one."""
    checkpoints = {}
    for method, picks in results.picks(rule).items():
        for trial, by_domain in picks.items():
            picked = {domain: pick for domain, pick in by_domain.items() if pick is not None}
            if results.many_held_out and picked:
                # One checkpoint is picked for all domains; its accuracies are averaged.
                pick = next(iter(picked.values()))
                accuracy = fmean(each.accuracy for each in picked.values())
                checkpoints[method, trial, HELD_OUT_TARGET] = PickedCheckpoint(
                    pick.run.key, pick.step, accuracy
                )
            elif not results.many_held_out:
                checkpoints |= {
                    (method, trial, domain): PickedCheckpoint(
                        pick.run.key, pick.step, pick.accuracy
                    )
                    for domain, pick in picked.items()
                }
    return checkpoints


def gap(case: SelectionCase, picked: PickedCheckpoint) -> Gap | None:
    """How far a picked checkpoint is from the best of its case; None if that was not evaluated."""
    for split in ("main", "sample"):
        accuracies = {
            (record.run.key, checkpoint.step): unseen_accuracy(record, checkpoint, split)
            for record in case.records
            for checkpoint in record.candidates
        }
        evaluated = {key: value for key, value in accuracies.items() if value is not None}
        if 1 < len(evaluated) == len(accuracies) and (picked.key, picked.step) in evaluated:
            # The first of equals, as in the rules.
            best = max(evaluated, key=lambda key: evaluated[key])
            behind = evaluated[best] - evaluated[picked.key, picked.step]
            return Gap(PickedCheckpoint(*best, evaluated[best]), behind, split == "main")
    return None


def curve(record: Record) -> Curve:
    """The curve of a run."""
    run, points = record.run, record.checkpoints
    validated = record.tests != record.unseen
    unseen, split = _unseen_curve(record)
    return Curve(
        steps=[point.step for point in points],
        sources=[source_accuracy(point, run.sources) for point in points],
        validation=[selection_value(point, run) for point in points] if validated else [],
        unseen=unseen,
        split=split,
    )


def unseen_accuracy(record: Record, checkpoint: Checkpoint, split: str) -> float | None:
    """Mean accuracy on a split of the tested domains; None unless all were evaluated on it."""
    scores = [checkpoint.score(domain, split) for domain in record.tests]
    evaluated = [score.accuracy for score in scores if score is not None]
    return fmean(evaluated) if evaluated and len(evaluated) == len(scores) else None


def gap_means(
    results: Results, rules: Sequence[str]
) -> tuple[dict[str, dict[str, float]], set[bool]]:
    """The mean gap over cases for every method and rule, and whether the gaps are exact."""
    gaps: dict[str, dict[str, list[float]]] = {}
    exact = set()
    for rule in rules:
        picked = picked_checkpoints(results, rule)
        for case in _compared_cases(results):
            checkpoint = picked.get(case.key)
            measured = gap(case, checkpoint) if checkpoint else None
            if measured is not None:
                exact.add(measured.exact)
                gaps.setdefault(case.method, {}).setdefault(rule, []).append(measured.behind)
    means = {
        method: {rule: fmean(values) for rule, values in by_rule.items()}
        for method, by_rule in gaps.items()
    }
    return means, exact


def curve_data(
    results: Results, rules: Sequence[str], marks: Mapping[str, Mark]
) -> dict[str, Any] | None:
    """Curves, picked checkpoints and best checkpoints for the page; None without any curve."""
    cases = _compared_cases(results)
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
            | {"i": run.trial, "d": run.draw, "k": run.key, "p": thin.split}
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
        "e": measured.exact if measured else None,
        "b": {"k": best.key, "s": best.step, "a": _thousandths(best.accuracy)} if best else None,
    }


def _compared_cases(results: Results) -> list[SelectionCase]:
    """All cases but those of the upper bound, which has seen the target."""
    return [case for case in selection_cases(results) if not case.method.startswith(UPPER_BOUND)]


def _unseen_curve(record: Record) -> tuple[list[float], str]:
    """Unseen accuracies at all checkpoints, of the first split that all were evaluated on."""
    for split in ("main", "sample"):
        values = [unseen_accuracy(record, point, split) for point in record.checkpoints]
        evaluated = [value for value in values if value is not None]
        if len(evaluated) == len(values):
            return evaluated, split
    return [], ""


def _thin(full: Curve, max_points: int, kept: set[int]) -> Curve:
    """The curve with about `max_points` points: its last, those at `kept` steps, and every nth."""
    every = -(-len(full.steps) // max_points)
    last = len(full.steps) - 1
    indices = [i for i, step in enumerate(full.steps) if (last - i) % every == 0 or step in kept]

    def thin(values: Sequence[float]) -> list[float]:
        return [values[i] for i in indices] if values else []

    return Curve(
        steps=[full.steps[i] for i in indices],
        sources=thin(full.sources),
        validation=thin(full.validation),
        unseen=thin(full.unseen),
        split=full.split,
    )


def _thousandths(share: float) -> int:
    return round(1000 * share)
