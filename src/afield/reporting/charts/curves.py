"""Curves of the accuracy during training, with the checkpoints that the rules picked.

The page's script draws the curves from `curve_data`. To keep it small, accuracies are whole
thousandths, steps that runs share are stored once, and long curves are thinned; picked checkpoints
always stay.

A gap of selection is how far a picked checkpoint is from the best one there was. A run evaluates an
unseen domain on its whole main split wherever a rule needs that, and at every checkpoint on a
sample for the curves, which is the whole split where that is cheap. A gap is known only where every
checkpoint was evaluated on the whole split: on a smaller sample, the best of many evaluations is
partly luck.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from afield.reporting.charts.axes import Mark, numeric_axis
from afield.reporting.results import Results
from afield.runs.record import Record
from afield.runs.selection import RULES, source_accuracies, validation_accuracies
from afield.training.scores import metric_values, remember, sample_counts, score_at

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
                accuracy = fmean(each.accuracy for each in picked.values())
                pick = replace(next(iter(picked.values())), accuracy=accuracy)
                picked = {HELD_OUT_TARGET: pick}
            for target, pick in picked.items():
                checkpoint = PickedCheckpoint(pick.run.key, pick.step, pick.accuracy)
                checkpoints[method, trial, target] = checkpoint
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
    return {
        method: {r: mean for r, values in by_rule.items() if not math.isnan(mean := fmean(values))}
        for method, by_rule in gaps.items()
    }


def compared_cases(results: Results) -> list[SelectionCase]:
    """All cases except for the upper bound, which has seen the target."""
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
