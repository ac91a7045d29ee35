"""Which runs a benchmark needs: each domain left out once, or a share of many domains held out."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import numpy as np

from afield.data.domains import DomainSet
from afield.errors import SpecError
from afield.experiments.record import DEFAULT_RULES, Run
from afield.experiments.selection import RULES
from afield.experiments.settings import (
    Settings,
    check_counts,
    check_settings,
    resolve_run,
    settings_of,
)
from afield.seeds import derive_seed

__all__ = [
    "Fold",
    "hold_out",
    "leave_one_out",
]


@dataclass(frozen=True)
class Fold:
    """One division of the domains: what is trained on, what is tested on, which rules read it."""

    sources: tuple[str, ...]
    rules: tuple[str, ...]
    tested: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    given: Mapping[str, Any] = field(default_factory=dict)


def leave_one_out(
    dataset: DomainSet,
    methods: Sequence[str],
    *,
    trials: int = 3,
    draws: int = 1,
    rules: Sequence[str] = DEFAULT_RULES,
    average: str = "last",
    settings: Settings | None = None,
) -> list[Run]:
    """The runs that leave each domain out once, and for the second rule each pair of domains.

    Parameters
    ----------
    dataset, methods
        On what, and with which methods.
    trials
        How often to repeat everything, each time with other splits and another seed.
    draws
        How many draws of the hyperparameters to try; the first is the defaults.
    rules
        The selection rules that will read the records.
    average, settings
        What is deployed, and settings that are not the defaults: ``steps``, ``every``, ``batch``,
        ``lr``, ``weight_decay``, ``backbone``, or a method's or average's own as
        ``vrex.penalty``.

    Examples
    --------
    >>> from afield.data.lookup import find_dataset
    >>> len(leave_one_out(find_dataset("rotated_digits"), ["erm", "vrex"], trials=1))
    12
    """
    twins = any(RULES[rule].needs_twins for rule in rules)
    if twins and len(dataset.domains) < 3:
        raise SpecError(
            f"{dataset.name} has {len(dataset.domains)} domains: the rule left-out-source takes "
            "three, so that one is left to train on; use --rules sources,target"
        )
    folds = [Fold(dataset.without(target), tuple(rules)) for target in dataset.domains]
    if twins:
        reading = tuple(rule for rule in rules if RULES[rule].needs_twins)
        folds += [
            Fold(dataset.without(*pair), reading) for pair in combinations(dataset.domains, 2)
        ]
    of_trials = [folds for _ in range(trials)]
    return _runs(dataset, methods, of_trials, draws=draws, average=average, settings=settings)


def hold_out(
    dataset: DomainSet,
    methods: Sequence[str],
    *,
    test: float = 0.25,
    validate: float = 0.1,
    train_on: Sequence[int | None] = (),
    trials: int = 3,
    draws: int = 1,
    rules: Sequence[str] | None = None,
    average: str = "last",
    settings: Settings | None = None,
) -> list[Run]:
    """The runs that hold out a share of many domains, other ones in every trial.

    Parameters
    ----------
    dataset, methods
        On what, and with which methods.
    test, validate
        The shares of the domains that are tested on, and that are validated on; both are unseen.
    train_on
        How many of the other domains to train on, for each number a benchmark of its own on the
        same unseen domains; a larger number has those of a smaller one. None are all of them.
    rules
        The selection rules that will read the records: by default validation and target, and
        sources in place of validation where no domain validates.
    trials, draws, average, settings
        As in `leave_one_out`.
    """
    names, count = sorted(dataset.domains), len(dataset.domains)
    tested, validated = (round(s * count) if 0 <= s < 1 else 0 for s in (test, validate))
    if not tested or not 0 <= validate < 1 or tested + validated >= count:
        raise SpecError(
            f"{dataset.name}: {test:g} of {count} domains to test on and {validate:g} to validate "
            "on: that leaves none to test on, or none to train on"
        )
    wanted = tuple(rules or ("validation" if validated else "sources", "target"))
    twins = next((rule for rule in wanted if RULES[rule].needs_twins), None)
    if twins:
        raise SpecError(f"the rule {twins} leaves one domain out; held-out shares have validation")
    if "sources" in wanted and validated:
        raise SpecError("the rule sources picks where no domain validates; use --validate 0")
    if "validation" in wanted and not validated:
        raise SpecError(f"{dataset.name}: no domain to validate on; hold out a larger share for it")
    of_trials = []
    for trial in range(trials):
        order = np.random.default_rng(derive_seed("hold-out", trial)).permutation(count)
        mixed = [names[i] for i in order]
        unseen, others = mixed[: tested + validated], mixed[tested + validated :]
        fold = Fold(dataset.without(*unseen), wanted, dataset.without(*mixed[tested:]))
        counts = dict.fromkeys(_count(number, len(others), dataset) for number in train_on)
        of_trials.append([_smaller(fold, others, count) for count in counts or [len(others)]])
    return _runs(dataset, methods, of_trials, draws=draws, average=average, settings=settings)


def _count(number: int | None, most: int, dataset: DomainSet) -> int:
    """How many domains to train on, of so many; None are all."""
    count = most if number is None else number
    if type(count) is not int or not 1 <= count <= most:
        raise SpecError(
            f"{dataset.name}: cannot train on {count} domains; {most} are left beside those that "
            "are held out"
        )
    return count


def _smaller(fold: Fold, others: Sequence[str], count: int) -> Fold:
    """The same division with the first so many of the domains that could be trained on."""
    sources = tuple(name for name in fold.sources if name in others[:count])
    unused = tuple(name for name in fold.sources if name in others[count:])
    return replace(fold, sources=sources, unused=unused, given={"domains": count})


def _runs(
    dataset: DomainSet,
    methods: Sequence[str],
    of_trials: Sequence[Iterable[Fold]],
    *,
    draws: int,
    average: str,
    settings: Settings | None,
) -> list[Run]:
    check_settings(settings or {}, [*methods, average])
    check_counts(trials=len(of_trials), draws=draws)
    return [
        _folded(
            resolve_run(
                dataset,
                method,
                fold.sources,
                trial=trial,
                draw=number,
                rules=fold.rules,
                average=average,
                settings=settings_of(settings or {}, method, average),
                tested=fold.tested,
            ),
            fold,
        )
        for trial, folds in enumerate(of_trials)
        for number in range(draws)
        for fold in folds
        for method in methods
    ]


def _folded(run: Run, fold: Fold) -> Run:
    """A run that leaves aside what its division does."""
    return replace(run, unused=fold.unused, given={**run.given, **fold.given})
