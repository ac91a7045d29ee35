"""Candidates of the selection rules: checkpoints, each with the value that a rule gives it.

The value is an accuracy, or another metric if the run names one (`Run.metric`): then "accuracy"
below stands for that metric, and the lowest negative log-likelihood is the best.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from afield.errors import DataError
from afield.training.metrics import metric_value, selection_score

# The command line lists the rules in its help: nothing here imports torch.
if TYPE_CHECKING:
    from afield.experiments.record import Record, Run
    from afield.training.checkpoint import Checkpoint, Score

    Candidate = tuple[float, Record, Checkpoint]

__all__ = ["by_left_out_source", "by_sources", "by_target", "by_validation"]
__all__ += ["mean", "metric_on", "selection_value", "source_accuracy", "validation_accuracy"]


def by_sources(records: Sequence[Record], target: str) -> Iterator[Candidate]:
    """Every checkpoint, by the mean accuracy on the validation splits of the sources."""
    for record in _testing_on(records, target):
        # With validation domains, only the checkpoint that they pick is tested.
        if record.tests == record.unseen:
            for checkpoint in record.candidates:
                yield _source_value(checkpoint, record.run), record, checkpoint


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
            value = _validation_value(checkpoint, record.run, record.run.metric)
            if value is not None:
                yield value, record, checkpoint


def by_target(records: Sequence[Record], target: str) -> Iterator[Candidate]:
    """The last checkpoints, by the accuracy on the targets' own validation splits."""
    for record in _testing_on(records, target):
        values = _values_on(record.checkpoints[-1], record.tests, "probe", record.run.metric)
        if values:
            yield mean(values), record, record.checkpoints[-1]


def selection_value(checkpoint: Checkpoint, run: Run) -> float:
    """The value that chooses the deployed checkpoint: on validation domains, or on the sources."""
    value = _validation_value(checkpoint, run, run.metric)
    return _source_value(checkpoint, run) if value is None else value


def validation_accuracy(checkpoint: Checkpoint, run: Run) -> float:
    """The accuracy on the splits that choose the deployed checkpoint, whatever metric chooses."""
    value = _validation_value(checkpoint, run, "")
    return source_accuracy(checkpoint, run.sources) if value is None else value


def source_accuracy(checkpoint: Checkpoint, sources: Sequence[str]) -> float:
    """Mean accuracy on the validation splits of the sources."""
    return _required_mean(_values_on(checkpoint, sources, "probe", ""), checkpoint)


def _source_value(checkpoint: Checkpoint, run: Run) -> float:
    values = _values_on(checkpoint, run.sources, "probe", run.metric)
    return _required_mean(values, checkpoint, run.metric)


def _required_mean(values: Sequence[float], checkpoint: Checkpoint, metric: str = "") -> float:
    if not values:
        what = f"has no {metric}" if metric else "was not evaluated"
        raise DataError(f"step {checkpoint.step}: a source's validation split {what}")
    return mean(values)


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean."""
    return sum(values) / len(values)


def metric_on(
    checkpoint: Checkpoint, domains: Sequence[str], part: str, metric: str
) -> float | None:
    """The mean of a metric over domains; None unless all of them have it."""
    values = [
        metric_value(s, metric) if (s := checkpoint.score(d, part)) else None for d in domains
    ]
    known = [value for value in values if value is not None]
    return mean(known) if known and len(known) == len(domains) else None


def _validation_value(checkpoint: Checkpoint, run: Run, metric: str) -> float | None:
    """Mean over the validation domains, of all samples of each; None without such domains."""
    others = (*run.sources, *run.tested, *run.unused)
    names = [name for name in checkpoint.scores if run.tested and name not in others]
    values = [_whole_value(checkpoint, name, metric) for name in names]
    return mean(values) if values else None


def _whole_value(checkpoint: Checkpoint, domain: str, metric: str) -> float:
    """The value on both splits of a domain together, or on the one that holds all samples."""
    both = [checkpoint.score(domain, part) for part in ("main", "probe")]
    scores = [score for score in both if score is not None]
    values = [_required(score, metric, domain) * score.size for score in scores]
    return sum(values) / sum(score.size for score in scores)


def _required(score: Score, metric: str, domain: str) -> float:
    value = selection_score(score, metric)
    if value is None:
        raise DataError(f"domain {domain!r} has no {metric}, so that it cannot validate")
    return value


def _values_on(
    checkpoint: Checkpoint, domains: Sequence[str], part: str, metric: str
) -> list[float]:
    """The value on each domain, more is better; empty unless all of them have one."""
    scores = [checkpoint.score(domain, part) for domain in domains]
    values = [selection_score(score, metric) if score is not None else None for score in scores]
    known = [value for value in values if value is not None]
    return known if len(known) == len(domains) else []


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
                step: value
                for step, checkpoint in _by_step(record)
                for value in _values_on(checkpoint, [source], "main", record.run.metric)
            }
    return curves


def _by_step(record: Record) -> list[tuple[int, Checkpoint]]:
    """Candidates by their step, or by 0 if there is only one: twins may differ in its step."""
    candidates = record.candidates
    return [(each.step if len(candidates) > 1 else 0, each) for each in candidates]
