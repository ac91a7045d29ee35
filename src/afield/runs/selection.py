"""Selection: rules that pick a checkpoint, and the values of the checkpoints to pick from."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add, itemgetter
from typing import TYPE_CHECKING

from afield.errors import DataError, SpecError, UnknownNameError
from afield.registry import hint
from afield.training.metrics import find_metric, metric_value, selection_scores

if TYPE_CHECKING:
    from afield.runs.record import Record
    from afield.runs.run import Run
    from afield.training.scores import Checkpoint

    # A value, the record, and the number of its checkpoint.
    Candidate = tuple[float, Record, int]
    # Values and numbers of samples at every checkpoint.
    Columns = tuple[Sequence[float | None], Sequence[float | None]]
if TYPE_CHECKING:
    from afield.runs.record import Record
    from afield.runs.run import Run
    from afield.runs.selection import Candidate
    from afield.training.scores import Score


# The command line lists the rules in its help: nothing here imports torch or numpy.


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
    from afield.training.scores import score_at

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
    from afield.training.scores import metric_values, sample_counts

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
    from afield.training.scores import metric_values, plain_means

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


# The command line lists the rules in its help: nothing here imports torch.


@dataclass(frozen=True)
class Pick:
    """A selected checkpoint, the value that selected it, and its scores on the target.

    `accuracy`, `calibration_error` and `accuracy_at_90` are of the target's test split; older
    records lack the last two. `in_domain` is the mean accuracy on the validation splits of the
    sources, or on their test lists if these select nothing, and `known` the same with the domain
    label given, for models that can use it.
    `unseen_classes` is the share of the test split whose classes no source has, which is not part
    of the accuracy, and `unseen_confidence` the mean confidence there; None without such samples.
    If another metric is shown, it takes the place of the accuracy in all three; it is NaN in
    records that lack it. `score` is the whole score on the target's test split.
    """

    run: Run
    step: int
    value: float
    accuracy: float
    in_domain: float
    known: float | None = None
    calibration_error: float | None = None
    accuracy_at_90: float | None = None
    unseen_classes: float | None = None
    unseen_confidence: float | None = None
    score: Score | None = None

    @property
    def worst_group(self) -> float | None:
        """The lowest accuracy of a group of the target's samples, if there are groups."""
        return metric_value(self.score, "worst_group") if self.score else None

    @property
    def p10_group(self) -> float | None:
        """The 10th percentile of the accuracies on groups."""
        return metric_value(self.score, "p10_group") if self.score else None

    @property
    def mean_group(self) -> float | None:
        """The mean of the accuracies on groups."""
        return metric_value(self.score, "mean_group") if self.score else None


@dataclass(frozen=True)
class Division:
    """How a benchmark divides its domains: the numbers of domains to test and to validate on.

    With no `tested` domains, every domain is left out once. With `whole`, all samples of the test
    domains are reported on, so that none are left to select with.
    """

    tested: int = 0
    validated: int = 0
    whole: bool = False

    def __str__(self) -> str:
        if self.whole:
            return "that reports on whole domains"
        if not self.tested:
            return "that leaves one domain out at a time"
        return f"with {self.tested} test and {self.validated} validation domains"


@dataclass(frozen=True)
class Rule:
    """A way to pick a checkpoint, and what a benchmark must provide for it.

    `candidates` yields the checkpoints to choose from by value, record and number. `fits`
    tells whether the rule can read a benchmark with a given division of its domains. `at_every`,
    `at_last` and `at_best` are the splits of unseen domains to evaluate at every checkpoint, at the
    last one, and at the best one on the sources. `needs_twins` asks for runs that leave out one
    more source each. `is_oracle` marks a rule that reads the labels of the target, and
    `is_default` a rule that is used unless others are chosen.
    """

    candidates: Callable[[Sequence[Record], str], Iterator[Candidate]]
    description: str
    fits: Callable[[Division], bool]
    at_every: tuple[str, ...] = ()
    at_last: tuple[str, ...] = ()
    at_best: tuple[str, ...] = ()
    needs_twins: bool = False
    is_oracle: bool = False
    is_default: bool = True

    def pick(self, records: Sequence[Record], target: str, metric: str = "") -> Pick | None:
        """The candidate with the best value, the first of equals, and its scores on the target.

        `metric` is shown in place of the accuracy; it does not change what is picked.

        None without candidates, and if the target was not evaluated at the best checkpoint: the
        next best would be another rule.
        """
        from afield.training.scores import score_at

        candidates = self.candidates(records, target)
        best = max(candidates, key=itemgetter(0), default=None)
        if best is None:
            return None
        value, record, number = best
        outcome, sources = score_at(record.checkpoints, number, target, "main"), record.run.sources
        if outcome is None:
            return None
        listed = all(score_at(record.checkpoints, number, name, "test") for name in sources)
        own = "test" if listed else "probe"
        accuracy, in_domain, known = (
            metric_on(record, number, domains, part, metric)
            for domains, part in (((target,), "main"), (sources, own), (sources, "known"))
        )
        unseen = outcome.unseen_classes or 0
        return Pick(
            run=record.run,
            step=record.steps[number],
            value=value,
            accuracy=math.nan if accuracy is None else accuracy,
            in_domain=math.nan if in_domain is None else in_domain,
            known=known,
            calibration_error=outcome.calibration_error,
            accuracy_at_90=outcome.accuracy_at_90,
            unseen_classes=unseen / (unseen + outcome.size) if unseen else None,
            unseen_confidence=outcome.unseen_confidence,
            score=outcome,
        )


RULES = {
    "sources": Rule(
        by_sources,
        "training-domain validation",
        fits=lambda division: not division.validated,
        at_best=("main",),
    ),
    "left-out-source": Rule(
        by_left_out_source,
        "leave-one-domain-out validation",
        fits=lambda division: not division.tested,
        at_every=("main",),
        needs_twins=True,
        is_default=False,
    ),
    "validation": Rule(
        by_validation,
        "validation on further held-out domains",
        fits=lambda division: division.validated > 0,
        at_best=("main",),
    ),
    "target": Rule(
        by_target,
        "test-domain validation (oracle)",
        fits=lambda division: not division.whole,
        at_last=("main", "probe"),
        is_oracle=True,
    ),
}


def default_rules(division: Division) -> tuple[str, ...]:
    """The rules that read a benchmark unless others are chosen."""
    return tuple(name for name, rule in RULES.items() if rule.is_default and rule.fits(division))


# For benchmarks that leave every domain out once.
DEFAULT_RULES = default_rules(Division())


def resolve_rules(names: Sequence[str], division: Division | None = None) -> tuple[str, ...]:
    """The named rules in the order of `RULES`; ``all`` stands for all of them.

    With a `division`, ``all`` stands for the rules that fit it, and other rules are refused.
    """
    for name in names:
        if name not in (*RULES, "all"):
            raise UnknownNameError(f"no rule {name!r}; {hint(name, [*RULES, 'all'])}")
    if not names:
        raise SpecError(f"no rule is given; known: {', '.join([*RULES, 'all'])}")
    fitting = [name for name, rule in RULES.items() if division is None or rule.fits(division)]
    unfit = next((name for name in names if name not in (*fitting, "all")), None)
    if unfit:
        raise SpecError(
            f"the rule {unfit} cannot select in a benchmark {division}; "
            f"use --rules {','.join(fitting)}"
        )
    return tuple(name for name in fitting if name in names or "all" in names)


def rules_to_show(asked: Sequence[str], evaluated: Sequence[str] = ()) -> tuple[str, ...]:
    """The rules that a table shows: those that are asked for, or else all but oracles.

    `evaluated` are the rules that the runs were evaluated for, if only these have numbers.
    """
    if asked:
        return resolve_rules(asked)
    known = resolve_rules(evaluated or ["all"])
    return tuple(name for name in known if not RULES[name].is_oracle) or known


def describe_rules() -> str:
    """The names of all rules and what they need, for help texts."""
    needs = {name: " (trains more runs)" for name, rule in RULES.items() if rule.needs_twins}
    needs |= {
        name: " (with --hold-out or --validate-on)"
        for name in RULES
        if not RULES[name].fits(Division())
    }
    return "; ".join(f"{name}: {RULES[name].description}{needs.get(name, '')}" for name in RULES)
