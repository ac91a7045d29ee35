"""Which runs a benchmark needs: each domain left out once, or a share of many domains held out."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np

from afield import registry
from afield.data.domains import ClassesByDomain, DomainSet, source_classes
from afield.errors import SpecError
from afield.hyperparameters import defaults
from afield.runs.record import Run
from afield.runs.selection import (
    DEFAULT_RULES,
    RULES,
    Division,
    default_rules,
    resolve_rules,
)
from afield.seeds import derive_seed
from afield.studies.benchmark import START
from afield.studies.domain_choice import ALL_DOMAINS, DomainChoice, Fold
from afield.studies.settings import (
    Settings,
    check_counts,
    check_settings,
    reports_whole,
    resolve_run,
    settings_of,
)

__all__ = ["divide", "hold_out", "in_fold", "leave_one_out", "start_run"]


def leave_one_out(
    dataset: DomainSet,
    methods: Sequence[str],
    *,
    choice: DomainChoice = ALL_DOMAINS,
    trials: int = 3,
    draws: int = 1,
    rules: Sequence[str] = (),
    average: str = "last",
    start: str = "",
    settings: Settings | None = None,
    known_classes: ClassesByDomain | None = None,
) -> list[Run]:
    """The runs that leave each domain out once, or divide the domains as a choice says.

    A rule that needs twins (leave-one-domain-out validation) adds the runs that leave out each pair
    of domains.

    Parameters
    ----------
    dataset, methods
        The dataset, and the names of the methods.
    choice
        The domains to test, validate and train on, by their names.
    trials
        Number of repetitions, each with other splits and another seed.
    draws
        Number of hyperparameter samples; the first one is the defaults.
    rules
        Names of the selection rules that will read the records; empty means the default rules for
        this choice of domains.
    average, settings
        The weight averaging, and settings that differ from the defaults: ``steps``, ``every``,
        ``batch``, ``lr``, ``weight_decay``, ``backbone``, or those of a method or average, such as
        ``vrex.penalty``.
    start
        ``linear_probe``: training starts from a head fitted on frozen features; the runs that fit
        it come first. Empty: from the network's own first weights.
    known_classes
        The classes that each domain has: a fold, with its twins, has outputs for the classes of its
        sources only. None means outputs for all classes of the dataset.

    Examples
    --------
    >>> from afield.data.lookup import find_dataset
    >>> len(leave_one_out(find_dataset("rotated_digits"), ["erm", "vrex"], trials=1))
    12
    """
    division = replace(choice.division(dataset), whole=reports_whole(settings or {}))
    rules = resolve_rules(rules or default_rules(division), division)
    twin_rules = tuple(rule for rule in rules if RULES[rule].needs_twins)
    if twin_rules and len(dataset.domains) < 3:
        raise SpecError(
            f"{dataset.name} has {len(dataset.domains)} domains: the rule {twin_rules[0]} needs "
            f"three, so that one is left to train on; use --rules {','.join(DEFAULT_RULES)}"
        )
    if twin_rules and (settings or {}).get("epochs"):
        raise SpecError(
            f"epochs: the rule {twin_rules[0]} compares runs at the same step, and epochs take "
            "other numbers of steps on other domains; use --steps"
        )
    folds = [
        replace(fold, rules=rules, classes=source_classes(dataset, known_classes, fold.sources))
        for fold in choice.folds(dataset)
    ]
    if twin_rules:
        folds += _twins(dataset, folds, twin_rules)
    trial_folds = [folds for _ in range(trials)]
    shared: dict[str, Any] = {"draws": draws, "average": average, "settings": settings}
    return _runs(dataset, methods, trial_folds, start=start, **shared)


def _twins(dataset: DomainSet, folds: Sequence[Fold], rules: tuple[str, ...]) -> list[Fold]:
    """The folds that leave out one more source than these; they have the classes of these.

    A pair of domains whose folds have different classes has two twins.
    """
    by_target = {dataset.without(*fold.sources)[0]: fold for fold in folds}
    twins = []
    for pair in combinations(dataset.domains, 2):
        related = [by_target[name] for name in pair if name in by_target]
        for fold in {fold.classes: fold for fold in reversed(related)}.values():
            sources = dataset.without(*pair)
            twins.append(Fold(sources, rules, given=fold.given, classes=fold.classes))
    return twins


def hold_out(
    dataset: DomainSet,
    methods: Sequence[str],
    *,
    hold_out: float = 0.25,
    validate: float = 0.1,
    train_on: Sequence[int | str] = (),
    trials: int = 3,
    draws: int = 1,
    rules: Sequence[str] = (),
    average: str = "last",
    start: str = "",
    settings: Settings | None = None,
    known_classes: ClassesByDomain | None = None,
) -> list[Run]:
    """The runs that hold out a share of many domains, other domains in every trial.

    Parameters
    ----------
    dataset, methods
        The dataset, and the names of the methods.
    hold_out, validate
        The shares of the domains to test on and to validate on; neither is trained on.
    train_on
        Numbers of the remaining domains to train on, or ``"all"``. Each number is a benchmark of
        its own with the same held-out domains; a larger number includes the domains of a smaller
        one. Empty means all remaining domains.
    rules
        Names of the selection rules that will read the records; empty means the default rules for
        these shares.
    trials, draws, average, start, settings, known_classes
        As in `leave_one_out`.
    """
    division = divide(dataset, hold_out=hold_out, validate=validate)
    division = replace(division, whole=reports_whole(settings or {}))
    rules = resolve_rules(rules or default_rules(division), division)
    names, tested, count = sorted(dataset.domains), division.tested, len(dataset.domains)
    unseen_count = tested + division.validated
    trial_folds = []
    for trial in range(trials):
        order = np.random.default_rng(derive_seed("hold-out", trial)).permutation(count)
        shuffled = [names[i] for i in order]
        unseen, others = shuffled[:unseen_count], shuffled[unseen_count:]
        fold = Fold(dataset.without(*unseen), rules, dataset.without(*shuffled[tested:]))
        sizes = dict.fromkeys(_source_count(size, len(others), dataset) for size in train_on)
        folds = [_with_sources(fold, others, size) for size in sizes or [len(others)]]
        trial_folds.append(
            [
                replace(fold, classes=source_classes(dataset, known_classes, fold.sources))
                for fold in folds
            ]
        )
    shared: dict[str, Any] = {"draws": draws, "average": average, "settings": settings}
    return _runs(dataset, methods, trial_folds, start=start, **shared)


def divide(dataset: DomainSet, *, hold_out: float, validate: float) -> Division:
    """The numbers of domains that shares of a dataset stand for."""
    count = len(dataset.domains)
    tested, validated = (round(s * count) if 0 <= s < 1 else 0 for s in (hold_out, validate))
    if not tested or not 0 <= validate < 1 or tested + validated >= count:
        raise SpecError(
            f"{dataset.name}: of {count} domains, --hold-out {hold_out:g} and --validate "
            f"{validate:g} leave none to test on or none to train on; choose other shares"
        )
    return Division(tested, validated)


def _source_count(number: int | str, available: int, dataset: DomainSet) -> int:
    """The number of domains to train on, out of those available; ``"all"`` means all of them."""
    count = available if number == "all" else number
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= available:
        raise SpecError(
            f"{dataset.name}: cannot train on {number} domains; {available} remain beside those "
            "that are held out"
        )
    return count


def _with_sources(fold: Fold, others: Sequence[str], count: int) -> Fold:
    """The fold with only the first `count` of the domains that are not held out as sources."""
    sources = tuple(name for name in fold.sources if name in others[:count])
    unused = tuple(name for name in fold.sources if name in others[count:])
    return replace(fold, sources=sources, unused=unused, given={"domains": count})


def _runs(
    dataset: DomainSet,
    methods: Sequence[str],
    trial_folds: Sequence[Iterable[Fold]],
    *,
    draws: int,
    average: str,
    start: str,
    settings: Settings | None,
) -> list[Run]:
    settings = settings or {}
    check_settings(settings, [*methods, average, *filter(None, [start])])
    check_counts(trials=len(trial_folds), draws=draws)
    bases: dict[str, Run] = {}
    runs = []
    for trial, folds in enumerate(trial_folds):
        for draw in range(draws):
            for fold in folds:
                base = start_run(dataset, fold, trial, settings) if start else None
                bases |= {base.key: base} if base else {}
                for method in methods:
                    run = resolve_run(
                        dataset,
                        method,
                        fold.sources,
                        trial=trial,
                        draw=draw,
                        rules=fold.rules,
                        average=average,
                        settings=settings_of(settings, method, average),
                        tested=fold.tested,
                        classes=fold.classes,
                    )
                    runs.append(in_fold(run, fold, base))
    return [*bases.values(), *runs]


def start_run(dataset: DomainSet, fold: Fold, trial: int, settings: Settings) -> Run:
    """The run that fits the head from which the runs of a fold start."""
    # The head belongs to the network that is trained afterwards.
    network = {"backbone": dataset.training.backbone}
    once = {"steps": 1, "every": 1, "epochs": 0.0}
    run = resolve_run(
        dataset,
        START,
        fold.sources,
        trial=trial,
        settings={**network, **settings_of(settings, START), **once},
        tested=fold.tested,
        classes=fold.classes,
    )
    return replace(run, role="base", unused=fold.unused, given={})


def in_fold(run: Run, fold: Fold, base: Run | None) -> Run:
    """The run with the base, the unused domains and the label of its fold."""
    run = replace(run, unused=fold.unused, given={**run.given, **fold.given})
    if base is None:
        return run
    start: dict[str, Any] = {"start": base.method}
    usual = defaults(registry.find("methods", base.method))
    start |= {f"{base.method}.{k}": v for k, v in base.params.items() if v != usual[k]}
    return replace(run, base=base.key, given={**run.given, **start})
