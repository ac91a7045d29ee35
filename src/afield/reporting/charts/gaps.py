"""Gaps of selection: how far the checkpoints that rules picked are from the best ones there were.

A run evaluates an unseen domain on its whole main split wherever a rule needs that, and at every
checkpoint on a sample for the curves, which is the whole split where that is cheap. A gap is known
only where every checkpoint was evaluated on the whole split: on a smaller sample, the best of many
evaluations is partly luck.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from afield.reporting.charts.axes import Mark
from afield.reporting.results import Results
from afield.runs.record import Record
from afield.runs.selection import RULES
from afield.training.scores import metric_values, remember, sample_counts

__all__ = ["HELD_OUT_TARGET", "Gap", "GapRow", "GapTable", "PickedCheckpoint", "SelectionCase"]
__all__ += ["build_gap_table", "compared_cases", "gap", "gap_means", "picked_checkpoints"]
__all__ += ["selection_cases", "unseen_accuracies", "whole_split"]

# The parts of an unseen domain that curves can show.
SPLITS = ("main", "sample")

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
    """The best checkpoint there was, and how far `behind` it the picked checkpoint is."""

    best: PickedCheckpoint
    behind: float


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
    """How far a picked checkpoint is from the best of its case; None if that is unknown."""
    splits = {record.run.key: whole_split(record) for record in case.records}
    if not all(splits.values()):
        return None
    accuracies = {
        (record.run.key, record.steps[number]): accuracy
        for record in case.records
        for of_record in [unseen_accuracies(record, splits[record.run.key])]
        for number in record.candidate_numbers
        if (accuracy := of_record[number]) is not None
    }
    if len(accuracies) < 2 or (picked.key, picked.step) not in accuracies:
        return None
    # The first of equals, as in the rules.
    best = max(accuracies, key=lambda key: accuracies[key])
    behind = accuracies[best] - accuracies[picked.key, picked.step]
    return Gap(PickedCheckpoint(*best, accuracies[best]), behind)


def whole_split(record: Record) -> str:
    """The name of the scores that every checkpoint has of the whole test split; empty if none.

    The sample is the whole split if it agrees with the main split wherever both were evaluated.
    Models that predict from batches see other batches in each, so theirs may differ.
    """
    question = "whole split", record.tests
    return remember(record.checkpoints, question, lambda: _whole_split(record))


def _whole_split(record: Record) -> str:
    if None not in unseen_accuracies(record, "main"):
        return "main"
    if None in unseen_accuracies(record, "sample"):
        return ""
    pairs = [
        (main, sample)
        for domain in record.tests
        for main, sample in zip(*(_results_on(record, domain, s) for s in SPLITS), strict=True)
        if main[0] is not None and sample[0] is not None
    ]
    return "sample" if pairs and all(main == sample for main, sample in pairs) else ""


def _results_on(record: Record, domain: str, split: str) -> Iterator[tuple[float | None, ...]]:
    """Number of samples and accuracy at every checkpoint."""
    sizes = sample_counts(record.checkpoints, domain, split)
    return zip(sizes, metric_values(record.checkpoints, domain, split), strict=True)


def unseen_accuracies(record: Record, split: str) -> Sequence[float | None]:
    """Mean accuracy on a split of the tested domains at every checkpoint.

    It is None unless all tested domains were evaluated on the split.
    """
    if len(record.tests) == 1:
        return metric_values(record.checkpoints, *record.tests, split)
    columns = [metric_values(record.checkpoints, domain, split) for domain in record.tests]
    if not columns:
        return [None] * len(record.checkpoints)
    return [None if None in row else fmean(row) for row in zip(*columns, strict=True)]


def gap_means(results: Results, rules: Sequence[str]) -> dict[str, dict[str, float]]:
    """The mean gap over cases for every method and rule, where it is known for all cases."""
    gaps: dict[str, dict[str, list[float]]] = {}
    for rule in rules:
        picked = picked_checkpoints(results, rule)
        for case in compared_cases(results):
            checkpoint = picked.get(case.key)
            if checkpoint:
                measured = gap(case, checkpoint)
                behind = math.nan if measured is None else measured.behind
                gaps.setdefault(case.method, {}).setdefault(rule, []).append(behind)
    means = {
        method: {rule: fmean(values) for rule, values in by_rule.items()}
        for method, by_rule in gaps.items()
    }
    return {
        method: {rule: mean for rule, mean in by_rule.items() if not math.isnan(mean)}
        for method, by_rule in means.items()
    }


def compared_cases(results: Results) -> list[SelectionCase]:
    """All cases but those of the upper bound, which has seen the target."""
    return [case for case in selection_cases(results) if not results.rows[case.method].is_bound]


def build_gap_table(
    results: Results, rules: Sequence[str], marks: Mapping[str, Mark]
) -> GapTable | None:
    """The gaps of every method and rule; None if none is known."""
    means = gap_means(results, rules)
    measured = [rule for rule in rules if any(rule in by_rule for by_rule in means.values())]
    if not measured:
        return None
    rows = [
        GapRow(mark, [means[name].get(rule, math.nan) for rule in measured])
        for name, mark in marks.items()
        if means.get(name)
    ]
    last = [rule for rule in measured if not RULES[rule].at_best and RULES[rule].at_last]
    note = "The best checkpoint is chosen with the test labels, so some of the gap is luck."
    if last:
        note += (
            f" {' and '.join(last)} chooses between the last checkpoints of runs only and cannot "
            "stop early, so its gap can be larger than that of a rule that does."
        )
    return GapTable(measured, rows, note)
