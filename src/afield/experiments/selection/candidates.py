"""Candidates of the selection rules: checkpoints, each with the value that a rule gives it.

The value is an accuracy, or another metric if the run names one (`Run.metric`): then "accuracy"
below stands for that metric, and the lowest negative log-likelihood is the best.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from operator import add
from typing import TYPE_CHECKING

from afield.errors import DataError
from afield.training.metrics import find_metric, metric_value, selection_scores

# The command line lists the rules in its help: nothing here imports torch or numpy.
if TYPE_CHECKING:
    from afield.experiments.record import Record, Run
    from afield.training.checkpoint import Checkpoint

    # A value, the record, and the number of its checkpoint.
    Candidate = tuple[float, Record, int]
    # Values and numbers of samples at every checkpoint.
    Columns = tuple[Sequence[float | None], Sequence[float | None]]

__all__ = ["by_left_out_source", "by_sources", "by_target", "by_validation"]
__all__ += ["mean", "metric_on", "selection_value", "selection_values", "source_accuracies"]
__all__ += ["source_accuracy", "validation_accuracies", "validation_accuracy"]


def by_sources(records: Sequence[Record], target: str) -> Iterator[Candidate]:
    """Every checkpoint, by the mean accuracy on the validation splits of the sources."""
    for record in _testing_on(records, target):
        # With validation domains, only the checkpoint that they pick is tested.
        if record.tests == record.unseen:
            metric = record.run.metric
            values = _means(record.checkpoints, record.run.sources, "probe", metric)
            for number in record.candidate_numbers:
                yield _required(values, number, record.checkpoints, metric), record, number


def by_left_out_source(records: Sequence[Record], target: str) -> Iterator[Candidate]:
    """Every checkpoint, by the mean accuracy on each source in the run that leaves it out too."""
    curves = _twin_curves(records, target)
    for record in _testing_on(records, target) if curves else ():
        values = [curves.get((record.run.recipe, name), {}) for name in record.run.sources]
        for step, number in _by_step(record):
            if all(step in curve for curve in values):
                yield mean([curve[step] for curve in values]), record, number


def by_validation(records: Sequence[Record], target: str) -> Iterator[Candidate]:
    """Every checkpoint, by the mean accuracy on the domains that are held out for validation."""
    for record in _testing_on(records, target):
        values = _validation_values(record.checkpoints, record.run, record.run.metric)
        for number in record.candidate_numbers:
            value = values[number]
            if value is not None:
                yield value, record, number


def by_target(records: Sequence[Record], target: str) -> Iterator[Candidate]:
    """The last checkpoints, by the accuracy on the targets' own validation splits."""
    for record in _testing_on(records, target):
        last = len(record.checkpoints) - 1
        value = _means(record.checkpoints, record.tests, "probe", record.run.metric)[last]
        if value is not None:
            yield value, record, last


def selection_values(record: Record) -> list[float]:
    """The values of the candidates that choose the deployed one: see `selection_value`."""
    return _values(record.checkpoints, record.candidate_numbers, record.run, record.run.metric)


def selection_value(checkpoint: Checkpoint, run: Run) -> float:
    """The value that chooses the deployed checkpoint: on validation domains, or on the sources."""
    return _values([checkpoint], [0], run, run.metric)[0]


def _values(
    checkpoints: Sequence[Checkpoint], numbers: Sequence[int], run: Run, metric: str
) -> list[float]:
    validated = _validation_values(checkpoints, run, metric)
    of_sources = _means(checkpoints, run.sources, "probe", metric)
    return [
        _required(of_sources, number, checkpoints, metric)
        if (value := validated[number]) is None
        else value
        for number in numbers
    ]


def validation_accuracy(checkpoint: Checkpoint, run: Run) -> float:
    """The accuracy on the splits that choose the deployed checkpoint, whatever metric chooses."""
    return validation_accuracies([checkpoint], run)[0]


def validation_accuracies(
    checkpoints: Sequence[Checkpoint], run: Run, numbers: Sequence[int] | None = None
) -> list[float]:
    """`validation_accuracy` of every checkpoint, or of those with the given numbers."""
    return _values(checkpoints, range(len(checkpoints)) if numbers is None else numbers, run, "")


def source_accuracy(checkpoint: Checkpoint, sources: Sequence[str]) -> float:
    """Mean accuracy on the validation splits of the sources."""
    return source_accuracies([checkpoint], sources)[0]


def source_accuracies(checkpoints: Sequence[Checkpoint], sources: Sequence[str]) -> list[float]:
    """`source_accuracy` of every checkpoint."""
    values = _means(checkpoints, sources, "probe", "")
    return [_required(values, number, checkpoints) for number in range(len(values))]


def _required(
    values: Sequence[float | None],
    number: int,
    checkpoints: Sequence[Checkpoint],
    metric: str = "",
) -> float:
    value = values[number]
    if value is None:
        what = f"has no {metric}" if metric else "was not evaluated"
        raise DataError(f"step {checkpoints[number].step}: a source's validation split {what}")
    return value


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean.

    The sum is that of arrays, from left to right; `sum` is more exact from Python 3.12 on. A run
    and a table that reads its record have to pick the same checkpoint.
    """
    return reduce(add, values) / len(values)


def metric_on(
    record: Record, number: int, domains: Sequence[str], part: str, metric: str
) -> float | None:
    """The mean of a metric over domains at one checkpoint; None unless all of them have it."""
    from afield.training.checkpoint import score_at

    scores = [score_at(record.checkpoints, number, domain, part) for domain in domains]
    values = [None if score is None else metric_value(score, metric) for score in scores]
    known = [value for value in values if value is not None]
    return mean(known) if known and len(known) == len(domains) else None


def _validation_values(
    checkpoints: Sequence[Checkpoint], run: Run, metric: str
) -> list[float | None]:
    """Mean over the validation domains, of all samples of each; None without such domains."""
    if not run.tested:
        return [None] * len(checkpoints)
    others = (*run.sources, *run.tested, *run.unused)
    names = dict.fromkeys(name for checkpoint in checkpoints for name in checkpoint.scores)
    columns = [_whole_values(checkpoints, name, metric) for name in names if name not in others]
    rows = zip(*columns, strict=True) if columns else [()] * len(checkpoints)
    known = [[value for value in row if value is not None] for row in rows]
    return [mean(values) if values else None for values in known]


def _whole_values(
    checkpoints: Sequence[Checkpoint], domain: str, metric: str
) -> list[float | None]:
    """The values on both splits of a domain together, or on the one that holds all samples."""
    from afield.training.checkpoint import metric_values, sample_counts

    columns = [
        (
            selection_scores(metric_values(checkpoints, domain, part, metric), metric),
            sample_counts(checkpoints, domain, part),
        )
        for part in ("main", "probe")
    ]
    return [_whole_value(columns, number, domain, metric) for number in range(len(checkpoints))]


def _whole_value(columns: Sequence[Columns], number: int, domain: str, metric: str) -> float | None:
    total, samples = 0.0, 0.0
    for values, counts in columns:
        value, count = values[number], counts[number]
        if count is None:
            continue
        if value is None:
            raise DataError(f"domain {domain!r} has no {metric}, so that it cannot validate")
        total += value * count
        samples += count
    return total / samples if samples else None


def _means(
    checkpoints: Sequence[Checkpoint], domains: Sequence[str], part: str, metric: str
) -> Sequence[float | None]:
    """The mean over domains at every checkpoint, more is better; None unless all have a value."""
    from afield.training.checkpoint import metric_values, plain_means

    plain = plain_means(checkpoints, domains, part, metric)
    if plain is not None:
        return [-value for value in plain] if find_metric(metric).lower_is_better else plain
    columns = [
        selection_scores(metric_values(checkpoints, domain, part, metric), metric)
        for domain in domains
    ]
    return [None if None in values else mean(values) for values in zip(*columns, strict=True)]


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
            values = _means(record.checkpoints, [source], "main", record.run.metric)
            curves[record.run.recipe, source] = {
                step: value
                for step, number in _by_step(record)
                if (value := values[number]) is not None
            }
    return curves


def _by_step(record: Record) -> list[tuple[int, int]]:
    """Candidates by their step, or by 0 if there is only one: twins may differ in its step."""
    numbers = record.candidate_numbers
    return [(record.steps[number] if len(numbers) > 1 else 0, number) for number in numbers]
