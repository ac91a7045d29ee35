"""Candidates of the selection rules: checkpoints, each with the value that a rule gives it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from afield.errors import DataError

# The command line lists the rules in its help: nothing here imports torch.
if TYPE_CHECKING:
    from afield.experiments.record import Record, Run
    from afield.training.evaluation import Checkpoint

    Candidate = tuple[float, Record, Checkpoint]

__all__ = ["accuracies_on", "by_left_out_source", "by_sources", "by_target", "by_validation"]
__all__ += ["mean", "selection_value", "source_accuracy"]


def by_sources(records: Sequence[Record], target: str) -> Iterator[Candidate]:
    """Every checkpoint, by the mean accuracy on the validation splits of the sources."""
    for record in _testing_on(records, target):
        # With validation domains, only the checkpoint that they pick is tested.
        if record.tests == record.unseen:
            for checkpoint in record.candidates:
                yield source_accuracy(checkpoint, record.run.sources), record, checkpoint


def by_left_out_source(records: Sequence[Record], target: str) -> Iterator[Candidate]:
    """Every checkpoint, by the mean accuracy on each source in the run that leaves it out too."""
    curves = _twin_curves(records, target)
    for record in _testing_on(records, target):
        for step, checkpoint in _by_step(record):
            values = [curves.get((record.run.recipe, name), {}) for name in record.run.sources]
            if all(step in curve for curve in values):
                yield mean([curve[step] for curve in values]), record, checkpoint


def by_validation(records: Sequence[Record], target: str) -> Iterator[Candidate]:
    """Every checkpoint, by the mean accuracy on the domains that are held out for validation."""
    for record in _testing_on(records, target):
        for checkpoint in record.candidates:
            value = _validation_accuracy(checkpoint, record.run)
            if value is not None:
                yield value, record, checkpoint


def by_target(records: Sequence[Record], target: str) -> Iterator[Candidate]:
    """The last checkpoints, by the accuracy on the targets' own validation splits."""
    for record in _testing_on(records, target):
        accuracies = accuracies_on(record.checkpoints[-1], record.tests, "probe")
        if accuracies:
            yield mean(accuracies), record, record.checkpoints[-1]


def selection_value(checkpoint: Checkpoint, run: Run) -> float:
    """The value that chooses the deployed checkpoint: on validation domains, or on the sources."""
    value = _validation_accuracy(checkpoint, run)
    return source_accuracy(checkpoint, run.sources) if value is None else value


def source_accuracy(checkpoint: Checkpoint, sources: Sequence[str]) -> float:
    """Mean accuracy on the validation splits of the sources."""
    accuracies = accuracies_on(checkpoint, sources, "probe")
    if not accuracies:
        raise DataError(f"step {checkpoint.step}: a source's validation split was not evaluated")
    return mean(accuracies)


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean."""
    return sum(values) / len(values)


def _validation_accuracy(checkpoint: Checkpoint, run: Run) -> float | None:
    """Mean accuracy on all samples of each validation domain; None without such domains."""
    others = (*run.sources, *run.tested, *run.unused)
    names = [name for name in checkpoint.scores if run.tested and name not in others]
    accuracies = [_accuracy(checkpoint, name) for name in names]
    return mean(accuracies) if accuracies else None


def _accuracy(checkpoint: Checkpoint, domain: str) -> float:
    """The accuracy on both splits of a domain together."""
    both = [checkpoint.score(domain, part) for part in ("main", "probe")]
    scores = [score for score in both if score is not None]
    return sum(score.accuracy * score.size for score in scores) / sum(s.size for s in scores)


def accuracies_on(checkpoint: Checkpoint, domains: Sequence[str], part: str) -> list[float]:
    """The accuracy on each domain; empty unless all of them were evaluated."""
    scores = [checkpoint.score(domain, part) for domain in domains]
    accuracies = [score.accuracy for score in scores if score is not None]
    return accuracies if len(accuracies) == len(domains) else []


def _testing_on(records: Iterable[Record], target: str) -> list[Record]:
    """The records that test on the target (alone, unless domains are held out), by their draws."""
    testing = [
        record
        for record in records
        if (target in record.run.tested if record.run.tested else record.unseen == (target,))
    ]
    return sorted(testing, key=lambda record: (record.run.draw, record.run.key))


def _twin_curves(records: Iterable[Record], target: str) -> dict[tuple[str, str], dict[int, float]]:
    """By recipe and source left out beside the target: the accuracy on that source by step."""
    curves = {}
    for record in records:
        if len(record.unseen) == 2 and target in record.unseen:
            (source,) = set(record.unseen) - {target}
            curves[record.run.recipe, source] = {
                step: score.accuracy
                for step, checkpoint in _by_step(record)
                if (score := checkpoint.score(source, "main")) is not None
            }
    return curves


def _by_step(record: Record) -> list[tuple[int, Checkpoint]]:
    """Candidates by their step, or by 0 if there is only one: twins may differ in its step."""
    candidates = record.candidates
    return [(each.step if len(candidates) > 1 else 0, each) for each in candidates]
