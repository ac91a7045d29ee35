"""Rules that pick a checkpoint among records: pure functions, `records -> Pick | None`.

    sources           best mean accuracy on the sources' probe parts
    left-out-source   best mean accuracy on each source when it, too, was left out
    validation        best mean accuracy on further domains that were held out to validate
    target            best accuracy on the target's probe part, last checkpoints only

Where the average that is deployed makes its own choice (SWAD), there is one checkpoint to pick.

All but the last know nothing of the target; that is an oracle, and named for it. All report the
accuracy on the target's main part. Each rule says what it reads of unseen domains, so that a run
evaluates no more than that; the sources' probe parts are read at every checkpoint.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from afield.errors import DataError, SpecError, UnknownNameError
from afield.experiments.record import Record, Run
from afield.registry import hint
from afield.training.evaluation import Checkpoint

__all__ = [
    "RULES",
    "Pick",
    "Rule",
    "by_left_out_source",
    "by_sources",
    "by_target",
    "by_validation",
    "resolve_rules",
    "selection_value",
    "source_accuracy",
]


@dataclass(frozen=True)
class Pick:
    """A chosen checkpoint: by what value, and how it does on the target's main part.

    `in_domain` is its mean accuracy on the sources' probe parts, and `known` that with the domain
    told, where the model can use it. `calibration_error` and `accuracy_at_90` are, as `accuracy`,
    of the target's main part; older records do not have them.
    """

    run: Run
    step: int
    value: float
    accuracy: float
    in_domain: float
    known: float | None = None
    calibration_error: float | None = None
    accuracy_at_90: float | None = None


@dataclass(frozen=True)
class Rule:
    """How to pick, and which parts of unseen domains must have been read for it, and when."""

    pick: Callable[[Sequence[Record], str], Pick | None]
    told: str
    at_every: tuple[str, ...] = ()
    at_last: tuple[str, ...] = ()
    at_best: tuple[str, ...] = ()
    needs_twins: bool = False


def by_sources(records: Sequence[Record], target: str) -> Pick | None:
    """Best mean accuracy on the sources' probe parts, over all runs and checkpoints."""
    return _best(
        target,
        (
            (source_accuracy(checkpoint, record.run.sources), record, checkpoint)
            for record in _left_out(records, target)
            # Where domains validate, it is their pick that was read on the targets.
            if record.tests == record.unseen
            for checkpoint in record.candidates
        ),
    )


def by_left_out_source(records: Sequence[Record], target: str) -> Pick | None:
    """Best mean accuracy on each source in turn when it, too, was left out, at the same step."""
    curves = _curves(records, target)
    return _best(
        target,
        (
            (sum(values) / len(values), record, checkpoint)
            for record in _left_out(records, target)
            for moment, checkpoint in _moments(record)
            for values in [_at_moment(curves, record.run, moment)]
            if values
        ),
    )


def by_validation(records: Sequence[Record], target: str) -> Pick | None:
    """Best mean accuracy on the domains that were held out to validate."""
    return _best(
        target,
        (
            (value, record, checkpoint)
            for record in _left_out(records, target)
            for checkpoint in record.candidates
            if (value := _on_validation(checkpoint, record.run)) is not None
        ),
    )


def by_target(records: Sequence[Record], target: str) -> Pick | None:
    """Best accuracy on the targets' own probe parts: an oracle, allowed no early stopping."""
    return _best(
        target,
        (
            (sum(values) / len(values), record, last)
            for record in _left_out(records, target)
            for last in [record.checkpoints[-1]]
            for values in [_accuracies(last, record.tests, "probe")]
            if values
        ),
    )


def selection_value(checkpoint: Checkpoint, run: Run) -> float:
    """By what the deployed checkpoint is chosen: validation domains, or else the sources."""
    value = _on_validation(checkpoint, run)
    return source_accuracy(checkpoint, run.sources) if value is None else value


def source_accuracy(checkpoint: Checkpoint, sources: Sequence[str]) -> float:
    """Mean accuracy on the sources' probe parts; the first best checkpoint is deployed."""
    scores = [checkpoint.scores[source].probe for source in sources]
    accuracies = [score.accuracy for score in scores if score is not None]
    if len(accuracies) < len(sources):
        raise DataError(f"step {checkpoint.step}: a source's probe part was not read")
    return sum(accuracies) / len(accuracies)


def resolve_rules(names: Sequence[str]) -> tuple[str, ...]:
    """The names of rules, in their own order; ``all`` stands for all of them."""
    for name in names:
        if name not in (*RULES, "all"):
            raise UnknownNameError(f"no rule {name!r}; {hint(name, [*RULES, 'all'])}")
    if not names:
        raise SpecError(f"no rule is given; known: {', '.join([*RULES, 'all'])}")
    return tuple(rule for rule in RULES if rule in names or "all" in names)


def _on_validation(checkpoint: Checkpoint, run: Run) -> float | None:
    """Mean accuracy on the whole of every validation domain, if there are any."""
    known = (*run.sources, *run.tested, *run.unused)
    names = [name for name in checkpoint.scores if run.tested and name not in known]
    found = [_whole(checkpoint, name) for name in names]
    return sum(found) / len(found) if found else None


def _whole(checkpoint: Checkpoint, domain: str) -> float:
    scores = [checkpoint.score(domain, part) for part in ("main", "probe")]
    read = [score for score in scores if score is not None]
    return sum(score.accuracy * score.size for score in read) / sum(score.size for score in read)


def _accuracies(checkpoint: Checkpoint, domains: Sequence[str], part: str) -> list[float]:
    """The accuracy on each domain; none unless all were read."""
    scores = [checkpoint.score(domain, part) for domain in domains]
    found = [score.accuracy for score in scores if score is not None]
    return found if len(found) == len(domains) else []


def _left_out(records: Iterable[Record], target: str) -> list[Record]:
    """The records that test on the target (alone, unless domains are held out), by their draws."""
    found = [
        record
        for record in records
        if (target in record.run.tested if record.run.tested else record.unseen == (target,))
    ]
    return sorted(found, key=lambda record: (record.run.draw, record.run.key))


Curves = dict[tuple[str, str], dict[int, float]]


def _curves(records: Iterable[Record], target: str) -> Curves:
    """For each twin (recipe and source left out beside the target), the source's accuracies."""
    found: Curves = {}
    for record in records:
        if len(record.unseen) == 2 and target in record.unseen:
            (source,) = set(record.unseen) - {target}
            found[record.run.recipe, source] = {
                moment: score.accuracy
                for moment, checkpoint in _moments(record)
                if (score := checkpoint.score(source, "main")) is not None
            }
    return found


def _moments(record: Record) -> list[tuple[int, Checkpoint]]:
    """Candidates by their step, or by 0 if there is only one: it may come early in one twin."""
    found = record.candidates
    return [(checkpoint.step if len(found) > 1 else 0, checkpoint) for checkpoint in found]


def _at_moment(curves: Curves, run: Run, moment: int) -> list[float] | None:
    """Accuracy on each source where it was left out as well; None unless there is one for each."""
    values = [curves.get((run.recipe, source), {}).get(moment) for source in run.sources]
    found = [value for value in values if value is not None]
    return found if len(found) == len(values) else None


def _best(target: str, candidates: Iterable[tuple[float, Record, Checkpoint]]) -> Pick | None:
    """The candidate with the best value, the first of equals, and how it does on the target.

    None where the target was not read at that checkpoint: the next best would be another rule.
    """
    best = max(candidates, key=lambda candidate: candidate[0], default=None)
    if best is None:
        return None
    value, record, checkpoint = best
    outcome = checkpoint.score(target, "main")
    if outcome is None:
        return None
    sources = record.run.sources
    told = _accuracies(checkpoint, sources, "known")
    return Pick(
        run=record.run,
        step=checkpoint.step,
        value=value,
        accuracy=outcome.accuracy,
        in_domain=source_accuracy(checkpoint, sources),
        known=sum(told) / len(told) if told else None,
        calibration_error=outcome.calibration_error,
        accuracy_at_90=outcome.accuracy_at_90,
    )


RULES = {
    "sources": Rule(by_sources, "picked on the sources' probe parts", at_best=("main",)),
    "left-out-source": Rule(
        by_left_out_source,
        "picked on each source when it, too, was left out",
        at_every=("main",),
        needs_twins=True,
    ),
    "validation": Rule(by_validation, "picked on domains held out to validate", at_best=("main",)),
    "target": Rule(
        by_target, "picked on the target's probe part (oracle)", at_last=("main", "probe")
    ),
}
