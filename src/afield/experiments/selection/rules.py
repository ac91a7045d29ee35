"""Selection rules: pure functions from records to a picked checkpoint.

    sources           training-domain validation: mean accuracy on the sources' validation splits
    left-out-source   leave-one-domain-out validation: mean accuracy on each source in the run that
                      leaves it out as well
    validation        mean accuracy on further domains that are held out for validation
    target            test-domain validation (oracle): accuracy on the target's validation split, at
                      the last checkpoint only

If the average chooses its own weights (SWAD), there is only one checkpoint to pick. All rules but
`target` use nothing of the target, and all report the accuracy on its test split. Every rule states
which splits of unseen domains it reads and when, so that a run evaluates no more than that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING

from afield.errors import SpecError, UnknownNameError
from afield.experiments.selection.candidates import (
    by_left_out_source,
    by_sources,
    by_target,
    by_validation,
    metric_on,
)
from afield.registry import hint
from afield.training.metrics import metric_value

# The command line lists the rules in its help: nothing here imports torch.
if TYPE_CHECKING:
    from afield.experiments.record import Record, Run
    from afield.experiments.selection.candidates import Candidate
    from afield.training.checkpoint import Score

__all__ = ["DEFAULT_RULES", "RULES", "Division", "Pick", "Rule"]
__all__ += ["default_rules", "describe_rules", "resolve_rules"]


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
        from afield.training.checkpoint import score_at

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


def describe_rules() -> str:
    """The names of all rules and what they need, for help texts."""
    needs = {name: " (trains more runs)" for name, rule in RULES.items() if rule.needs_twins}
    needs |= {
        name: " (with --hold-out or --validate-on)"
        for name in RULES
        if not RULES[name].fits(Division())
    }
    return "; ".join(f"{name}: {RULES[name].description}{needs.get(name, '')}" for name in RULES)
