"""The curves of a benchmark in little room: what a page's script draws them from.

Accuracies are whole thousandths, steps that runs share are kept once, and long curves are thinned;
checkpoints that a rule picked stay.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from afield.experiments.record import Record
from afield.reporting.axes import Mark, numeric_axis
from afield.reporting.curves import (
    Curve,
    PickedCheckpoint,
    SelectionCase,
    curve,
    gap,
    picked_checkpoints,
    selection_cases,
)
from afield.reporting.results import UPPER_BOUND, Results

__all__ = ["curve_data", "gap_means"]

# Points of a curve, and of all curves together.
MAX_CURVE_POINTS, MAX_TOTAL_POINTS = 120, 60_000


def curve_data(
    results: Results, rules: Sequence[str], marks: Mapping[str, Mark]
) -> dict[str, Any] | None:
    """The curves of all runs that have one, what rules picked, and the best there was."""
    known = [case for case in selection_cases(results) if not case.method.startswith(UPPER_BOUND)]
    shown = [(case, r) for case in known for r in case.records if len(r.checkpoints) > 1]
    if not shown:
        return None
    picked = {rule: picked_checkpoints(results, rule) for rule in rules}
    targets = list(dict.fromkeys(case.target for case, _ in shown))
    most = max(12, min(MAX_CURVE_POINTS, MAX_TOTAL_POINTS // len(shown)))
    steps: list[Sequence[int]] = []
    runs, values = [], []
    for case, record in shown:
        kept = {each.step for own in picked.values() if (each := own.get(_place(case)))}
        thin = _thinned(record, most, kept)
        values += [*thin.sources, *thin.validation, *thin.unseen]
        if thin.steps not in steps:
            steps.append(thin.steps)
        run = record.run
        place = {"m": marks[case.method].number, "t": targets.index(case.target)}
        lines = {"a": thin.sources, "v": thin.validation, "u": thin.unseen}
        runs.append(
            {**place, "i": run.trial, "d": run.draw, "k": run.key, "p": thin.part}
            | {"s": steps.index(thin.steps)}
            | {name: [_thousandths(v) for v in own] for name, own in lines.items() if own}
        )
    across = numeric_axis([100 * value for value in values], ticks=5, log=False)
    return {
        "methods": {str(mark.number): name for name, mark in marks.items()},
        "targets": targets,
        "rules": list(rules),
        "steps": steps,
        "runs": runs,
        "picks": _picks(known, rules, picked, marks, targets),
        "y": {
            "low": across.low,
            "high": across.high,
            "ticks": [vars(tick) for tick in across.ticks],
        },
    }


def gap_means(
    results: Results, rules: Sequence[str]
) -> tuple[dict[str, dict[str, float]], set[bool]]:
    """The mean gap of every method and rule, over cases; and whether they are exact."""
    found: dict[str, dict[str, list[float]]] = {}
    exact = set()
    known = [case for case in selection_cases(results) if not case.method.startswith(UPPER_BOUND)]
    for rule in rules:
        picked = picked_checkpoints(results, rule)
        for case in known:
            choice = picked.get(_place(case))
            own = gap(case, choice) if choice else None
            if own is not None:
                exact.add(own.exact)
                found.setdefault(case.method, {}).setdefault(rule, []).append(own.behind)
    means = {
        method: {rule: fmean(values) for rule, values in own.items()}
        for method, own in found.items()
    }
    return means, exact


def _picks(
    known: Sequence[SelectionCase],
    rules: Sequence[str],
    picked: Mapping[str, Mapping[tuple[str, int, str], PickedCheckpoint]],
    numbers: Mapping[str, Mark],
    targets: Sequence[str],
) -> list[dict[str, Any]]:
    found = []
    for case in known:
        for number, rule in enumerate(rules):
            choice = picked[rule].get(_place(case))
            if choice is None or case.target not in targets:
                continue
            own = gap(case, choice)
            best = own.best if own else None
            found.append(
                {
                    "m": numbers[case.method].number,
                    "t": targets.index(case.target),
                    "i": case.trial,
                    "r": number,
                    "k": choice.key,
                    "s": choice.step,
                    "a": _thousandths(choice.accuracy),
                    "g": _thousandths(own.behind) if own else None,
                    "e": own.exact if own else None,
                    "b": {"k": best.key, "s": best.step, "a": _thousandths(best.accuracy)}
                    if best
                    else None,
                }
            )
    return found


def _place(case: SelectionCase) -> tuple[str, int, str]:
    return case.method, case.trial, case.target


def _thinned(record: Record, most: int, kept: set[int]) -> Curve:
    """A curve with at most about so many points, its last among them, and those to be kept."""
    whole = curve(record)
    every = -(-len(whole.steps) // most)
    last = len(whole.steps) - 1
    chosen = [
        place
        for place, step in enumerate(whole.steps)
        if (last - place) % every == 0 or step in kept
    ]

    def thin(values: Sequence[float]) -> list[float]:
        return [values[place] for place in chosen] if values else []

    return Curve(
        steps=[whole.steps[place] for place in chosen],
        sources=thin(whole.sources),
        validation=thin(whole.validation),
        unseen=thin(whole.unseen),
        part=whole.part,
    )


def _thousandths(share: float) -> int:
    return round(1000 * share)
