"""Accuracy over training, run by run: where each rule picked, and the best checkpoint there was.

Of an unseen domain a run reads the whole main part at every checkpoint where a rule asks for it,
and otherwise a small sample. A gap is read off the first where it can be. Of a sample the best of
many readings is partly luck: the gap then looks larger than it is.

A case is what a rule picks for: a trial with the domain that was left out, or with all those that
were held out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from afield.experiments.record import Record
from afield.experiments.selection import selection_value, source_accuracy
from afield.reporting.results import Results
from afield.training.evaluation import Checkpoint

__all__ = [
    "HELD_OUT_TARGET",
    "Curve",
    "Gap",
    "PickedCheckpoint",
    "SelectionCase",
    "best_checkpoint_accuracies",
    "curve",
    "gap",
    "picked_checkpoints",
    "selection_cases",
]

# What stands for all tested domains where many are held out.
HELD_OUT_TARGET = "held-out domains"


@dataclass(frozen=True)
class PickedCheckpoint:
    """A checkpoint of a run, by the run's key, and its accuracy on what is unseen."""

    key: str
    step: int
    accuracy: float


@dataclass(frozen=True)
class SelectionCase:
    """The runs of one method that a rule picks from, for one trial and target."""

    method: str
    trial: int
    target: str
    records: Sequence[Record]


@dataclass(frozen=True)
class Gap:
    """The best checkpoint there was, and how far `behind` it the rule's choice is.

    Both are read off the whole main part (`exact`), or off the sample.
    """

    best: PickedCheckpoint
    behind: float
    exact: bool


@dataclass(frozen=True)
class Curve:
    """A run's accuracies at its steps: on the sources, on validating domains, on what is unseen.

    The last are of the `part` main or sample, whichever was read throughout; empty if neither was.
    """

    steps: Sequence[int]
    sources: Sequence[float]
    validation: Sequence[float]
    unseen: Sequence[float]
    part: str


def selection_cases(results: Results) -> list[SelectionCase]:
    """All cases of a benchmark, by method, trial and target; without the twins of runs."""
    found: dict[tuple[str, int, str], list[Record]] = {}
    for method, records in results.methods.items():
        for record in records:
            alone = bool(record.run.tested) or len(record.unseen) == 1
            if alone:
                target = HELD_OUT_TARGET if record.run.tested else record.unseen[0]
                found.setdefault((method, record.run.trial, target), []).append(record)
    order = {domain: place for place, domain in enumerate(results.domains)}
    return [
        SelectionCase(*key, sorted(own, key=lambda record: (record.run.draw, record.run.key)))
        for key, own in sorted(
            found.items(), key=lambda each: (each[0][1], order.get(each[0][2], 0))
        )
    ]


def picked_checkpoints(results: Results, rule: str) -> dict[tuple[str, int, str], PickedCheckpoint]:
    """What a rule picked for each case, by method, trial and target, where it could."""
    found = {}
    for method, picks in results.picks(rule).items():
        for trial, of_trial in picks.items():
            known = {domain: pick for domain, pick in of_trial.items() if pick is not None}
            if results.many and known:
                # One choice for all: their own accuracies are averaged.
                pick = next(iter(known.values()))
                accuracy = fmean(each.accuracy for each in known.values())
                found[method, trial, HELD_OUT_TARGET] = PickedCheckpoint(
                    pick.run.key, pick.step, accuracy
                )
            elif not results.many:
                found |= {
                    (method, trial, domain): PickedCheckpoint(
                        pick.run.key, pick.step, pick.accuracy
                    )
                    for domain, pick in known.items()
                }
    return found


def gap(case: SelectionCase, picked: PickedCheckpoint) -> Gap | None:
    """How far a choice is from the best of its case; None where that was not read."""
    for part in ("main", "sample"):
        readings = {
            (record.run.key, checkpoint.step): _unseen(record, checkpoint, part)
            for record in case.records
            for checkpoint in record.candidates
        }
        known = {place: value for place, value in readings.items() if value is not None}
        if 1 < len(known) == len(readings) and (picked.key, picked.step) in known:
            # Of equals the first, as rules have it.
            place = max(known, key=lambda each: known[each])
            behind = known[place] - known[picked.key, picked.step]
            return Gap(PickedCheckpoint(*place, known[place]), behind, part == "main")
    return None


def curve(record: Record) -> Curve:
    """What a run's record has for a curve."""
    run, points = record.run, record.checkpoints
    validated = record.tests != record.unseen
    unseen, part = _throughout(record)
    return Curve(
        steps=[point.step for point in points],
        sources=[source_accuracy(point, run.sources) for point in points],
        validation=[selection_value(point, run) for point in points] if validated else [],
        unseen=unseen,
        part=part,
    )


def best_checkpoint_accuracies(record: Record) -> tuple[float, float] | None:
    """Validation and unseen accuracy of the checkpoint that is deployed, if both were read."""
    best = max(record.candidates, key=lambda checkpoint: selection_value(checkpoint, record.run))
    accuracy = _unseen(record, best, "main")
    return None if accuracy is None else (selection_value(best, record.run), accuracy)


def _throughout(record: Record) -> tuple[list[float], str]:
    for part in ("main", "sample"):
        values = [_unseen(record, point, part) for point in record.checkpoints]
        known = [value for value in values if value is not None]
        if len(known) == len(values):
            return known, part
    return [], ""


def _unseen(record: Record, checkpoint: Checkpoint, part: str) -> float | None:
    """The mean accuracy on a part of the tested domains; None unless it was read of all."""
    scores = [checkpoint.score(domain, part) for domain in record.tests]
    known = [score.accuracy for score in scores if score is not None]
    return fmean(known) if known and len(known) == len(scores) else None
