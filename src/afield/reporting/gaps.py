"""Gaps of selection: how far the checkpoints that rules picked are from the best ones there were.

A run evaluates an unseen domain on its whole main split wherever a rule needs that, and otherwise
on a small sample. A gap is measured on the whole split where possible. On a sample, the best of
many evaluations is partly luck, so the gap looks larger than it is.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from afield.experiments.record import Record
from afield.reporting.axes import Mark
from afield.reporting.results import UPPER_BOUND, Results
from afield.training.evaluation import Checkpoint

__all__ = ["HELD_OUT_TARGET", "Gap", "GapRow", "GapTable", "PickedCheckpoint", "SelectionCase"]
__all__ += ["build_gap_table", "compared_cases", "gap", "gap_means", "picked_checkpoints"]
__all__ += ["selection_cases", "unseen_accuracy"]

# Stands for all tested domains where one model is tested on several.
HELD_OUT_TARGET = "held-out domains"

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
class GapRow:
    """A method and its gaps, in the order of the rules; NaN where a gap is unknown."""

    method: Mark
    gaps: Sequence[float]


@dataclass(frozen=True)
class GapTable:
    """How far picked checkpoints are from the best ones, by method and rule."""

    rules: Sequence[str]
    rows: Sequence[GapRow]
    note: str


def selection_cases(results: Results) -> list[SelectionCase]:
    """All cases by trial and target, without the runs that leave out two domains."""
    grouped: dict[CaseKey, list[Record]] = {}
    for method, records in results.methods.items():
        for record in records:
            if record.run.tested or len(record.unseen) == 1:
                target = HELD_OUT_TARGET if results.together else record.tests[0]
                if results.by_source:
                    target = record.run.sources[0]
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
            if results.together and picked:
                # One checkpoint is picked for all domains; its accuracies are averaged.
                pick = next(iter(picked.values()))
                accuracy = fmean(each.accuracy for each in picked.values())
                checkpoints[method, trial, HELD_OUT_TARGET] = PickedCheckpoint(
                    pick.run.key, pick.step, accuracy
                )
            elif not results.together:
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
        for case in compared_cases(results):
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


def compared_cases(results: Results) -> list[SelectionCase]:
    """All cases but those of the upper bound, which has seen the target."""
    return [case for case in selection_cases(results) if not case.method.startswith(UPPER_BOUND)]


def build_gap_table(
    results: Results, rules: Sequence[str], marks: Mapping[str, Mark]
) -> GapTable | None:
    """The gaps of every method and rule; None if none could be measured."""
    means, exact = gap_means(results, rules)
    measured = [rule for rule in rules if any(rule in by_rule for by_rule in means.values())]
    if not measured:
        return None
    rows = [
        GapRow(mark, [means[name].get(rule, math.nan) for rule in measured])
        for name, mark in marks.items()
        if means.get(name)
    ]
    notes = {
        frozenset({True}): "Measured on the whole test split.",
        frozenset({False}): "Measured on at most 64 samples of the test split: the best of many "
        "such measurements is partly luck, so the true gap is smaller.",
    }
    mixed = "Measured on the whole test split, or on a sample of it where that is missing."
    return GapTable(measured, rows, notes.get(frozenset(exact), mixed))
