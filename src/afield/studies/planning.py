"""From a benchmark to its runs, after reading and checking the data."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from afield import own_code, registry
from afield.data.domains import DomainSet, source_classes
from afield.data.lookup import find_dataset
from afield.data.sources.tables import name_columns
from afield.errors import IncompatibleMethodError, SpecError
from afield.hyperparameters import build, validate_values
from afield.merging.scopes import merges_weights
from afield.runs.record import Run
from afield.runs.selection import default_rules, resolve_rules
from afield.studies.benchmark import (
    DEFAULT_MERGES,
    DEFAULT_METHODS,
    DEFAULT_VALIDATE,
    START,
    Benchmark,
    check_start,
)
from afield.studies.combinations import (
    adapted_runs,
    check_data_and_network,
    possible_runs,
)
from afield.studies.domain_choice import Fold
from afield.studies.features import use_features
from afield.studies.known_classes import (
    check_unseen_classes,
    read_classes,
    with_classes_choice,
)
from afield.studies.merge_protocol import merging_runs
from afield.studies.protocol import divide, hold_out, in_fold, leave_one_out, start_run
from afield.studies.settings import (
    Settings,
    check_settings,
    reports_whole,
    resolve_run,
    settings_of,
)

__all__ = ["check_run", "plan_run", "plan_runs", "plan_training"]

log = logging.getLogger(__name__)


def plan_runs(benchmark: Benchmark, *, check_inputs: bool = True) -> list[Run]:
    """The runs of a benchmark, dataset after dataset.

    Without `check_inputs`, no network is built, and data are read only where the number of steps
    depends on them: with epochs, or for the classes of your own data.
    """
    _methods(benchmark)
    return [
        run
        for name in benchmark.dataset
        for run in _plan_dataset(benchmark, name, check_inputs=check_inputs)
    ]


def plan_run(dataset: str | Path, method: str, **options: Any) -> Run:
    """The run that trains on all domains but the target; options are those of `plan_training`."""
    return plan_training(dataset, method, **options)[-1]


def plan_training(
    dataset: str | Path,
    method: str,
    *,
    target: str | Sequence[str] = (),
    classes: str | None = None,
    finetune: bool | None = None,
    start: str = "",
    **options: Any,
) -> list[Run]:
    """The run that trains on all domains but the target, after the one that fits its start, if any.

    `classes`, `finetune` and `start` are as in a benchmark; `options` are as in `resolve_run`.
    """
    check_start(start)
    domain_set = find_dataset(dataset)
    domain_set.check_available()
    given = options.get("settings") or {}
    domain_set, settings = use_features(domain_set, given, finetune=finetune)
    targets = (target,) if isinstance(target, str) else tuple(target)
    sources = domain_set.without(*targets)
    known = read_classes(domain_set, settings, classes) if targets else None
    own = source_classes(domain_set, known, sources)
    of_start = [name for name in settings if start and name.startswith(f"{start}.")]
    options["settings"] = {k: v for k, v in settings.items() if k not in of_start}
    run = resolve_run(domain_set, method, sources, classes=own, **options)
    (run,) = with_classes_choice([run], domain_set, classes)
    check_unseen_classes(domain_set, [run])
    _log_dataset_settings(domain_set, [run.method], run.average, settings)
    check_data_and_network(domain_set, run)
    runs = [run]
    if start:
        fold = Fold(sources, classes=run.classes)
        base = start_run(domain_set, fold, run.trial, settings)
        runs = [base, in_fold(run, fold, base)]
    possible_runs(domain_set, runs[-1:], every=False)
    return runs


def check_run(run: Run) -> None:
    """Check a run that was read from a record as strictly as one that is planned."""
    own_code.check(run.code, run.key)
    dataset = find_dataset(run.dataset)
    dataset.check_available()
    unknown = [name for name in (*run.sources, *run.tested) if name not in dataset.domains]
    if unknown:
        raise SpecError(f"{run.key}: {dataset.name} has no domain {unknown[0]!r}")
    for kind, name, values in (
        ("methods", run.method, run.params),
        ("averages", run.average, run.average_params),
    ):
        build(registry.find(kind, name), validate_values(registry.find(kind, name), values, name))
    check_data_and_network(dataset, run)


def _methods(benchmark: Benchmark) -> list[str]:
    """The names of the methods; ``all`` stands for all of them."""
    names = benchmark.methods
    if "all" in names:
        return registry.names("methods")
    for name in names:
        registry.find("methods", name)
    return list(dict.fromkeys(names))


def _with_defaults(benchmark: Benchmark, dataset: DomainSet) -> Benchmark:
    """The benchmark with the default methods, and the default merges where they are possible."""
    if benchmark.methods or benchmark.merges:
        return benchmark
    plain = not (benchmark.hold_out or benchmark.start or benchmark.average != "last")
    plain = plain and not benchmark.single_source and len(dataset.domains) > 2
    folds = benchmark.domain_choice.folds(dataset) if plain else []
    mergeable = bool(folds) and min(len(fold.sources) for fold in folds) > 1
    merges = DEFAULT_MERGES if mergeable else ()
    return replace(benchmark, methods=DEFAULT_METHODS, merges=merges)


def _plan_dataset(asked: Benchmark, name: str, *, check_inputs: bool) -> list[Run]:
    columns = {"label": asked.label, "domain": asked.domain, "text": asked.text}
    dataset = find_dataset(name_columns(name, **columns))
    if check_inputs:
        dataset.check_available()
    dataset, remaining = use_features(dataset, asked.settings, finetune=asked.finetune)
    asked = replace(asked, settings=remaining)
    benchmark = _with_defaults(_published_task(asked, dataset), dataset)
    # Methods that nobody asked for by name are left out where they do not fit.
    every = not asked.methods or "all" in asked.methods
    methods = _methods(benchmark)
    shares = _shares(benchmark)
    choice = benchmark.domain_choice
    division = divide(dataset, **shares) if benchmark.hold_out else choice.division(dataset)
    division = replace(division, whole=reports_whole(benchmark.settings))
    shared: dict[str, Any] = {
        "trials": benchmark.trials,
        "draws": benchmark.draws,
        "average": benchmark.average,
        "rules": resolve_rules(benchmark.rules or default_rules(division), division),
        "known_classes": read_classes(dataset, benchmark.settings, benchmark.classes),
    }
    experts = list(dict.fromkeys(benchmark.expert_method)) if benchmark.merges else []
    draws = benchmark.expert_draws or 0
    merges = _fitting_merges(dataset, benchmark, draws or len(experts))
    merge_owners = [*merges, *experts, *([START] if merges else [])]
    adaptations = _adaptations(benchmark)
    owners = [*methods, *merge_owners, *filter(None, [benchmark.start]), *adaptations]
    check_settings(benchmark.settings, [*owners, benchmark.average])
    _log_dataset_settings(dataset, [*methods, *experts], benchmark.average, benchmark.settings)
    runs: list[Run] = []
    if methods:
        settings = settings_of(benchmark.settings, *methods, benchmark.start, benchmark.average)
        planner = _planner(benchmark, dataset, settings=settings, start=benchmark.start, **shared)
        runs += _fitting_methods(planner, methods) if every else planner(methods)
    if benchmark.merges:
        settings = settings_of(benchmark.settings, *merge_owners, benchmark.average)
        chosen: dict[str, Any] = {"expert_method": experts, "base_steps": benchmark.base_steps}
        chosen |= {"expert_draws": draws, "baselines": bool(asked.merges)}
        runs += merging_runs(dataset, merges, choice=choice, settings=settings, **chosen, **shared)
    runs = with_classes_choice(runs, dataset, benchmark.classes)
    runs += adapted_runs(runs, adaptations, benchmark.settings)
    return _checked_runs(dataset, runs, every=every) if check_inputs else runs


def _checked_runs(dataset: DomainSet, runs: list[Run], *, every: bool) -> list[Run]:
    """The possible runs, after reading the data and building the network."""
    check_unseen_classes(dataset, runs)
    check_data_and_network(dataset, runs[0])
    return possible_runs(dataset, runs, every=every)


def _adaptations(benchmark: Benchmark) -> list[str]:
    """The names of the adaptations; ``all`` stands for all of them."""
    if "all" in benchmark.adapt:
        return registry.names("adaptations")
    for name in benchmark.adapt:
        registry.find("adaptations", name)
    return list(dict.fromkeys(benchmark.adapt))


def _log_dataset_settings(
    dataset: DomainSet, methods: Sequence[str], average: str, settings: Settings
) -> None:
    """Log the settings that a dataset has for methods and averages, unless others are given."""
    defaults = {name: dataset.methods.get(name, {}) for name in methods}
    defaults[f"--average {average}"] = dataset.averages.get(average, {})
    for owner, values in defaults.items():
        used = [f"{name}={value}" for name, value in values.items() if name not in settings]
        if used:
            log.warning("%s: %s uses %s here", dataset.name, owner, ", ".join(used))


def _published_task(benchmark: Benchmark, dataset: DomainSet) -> Benchmark:
    """The benchmark with the domains of a dataset's published task, unless it names others."""
    if not dataset.test_domains or benchmark.domain_choice or benchmark.hold_out:
        return benchmark
    return replace(
        benchmark,
        targets=("+".join(dataset.test_domains),),
        validate_on=dataset.validation_domains,
        settings={"report": "whole", **benchmark.settings},
    )


def _shares(benchmark: Benchmark) -> dict[str, Any]:
    validate = DEFAULT_VALIDATE if benchmark.validate is None else benchmark.validate
    return {"hold_out": benchmark.hold_out, "validate": validate}


def _planner(
    benchmark: Benchmark, dataset: DomainSet, **options: Any
) -> Callable[[list[str]], list[Run]]:
    """The protocol of a benchmark, as a function of the methods."""
    if not benchmark.hold_out:
        return partial(leave_one_out, dataset, choice=benchmark.domain_choice, **options)
    return partial(
        hold_out,
        dataset,
        train_on=[_source_count(number) for number in benchmark.train_on],
        **_shares(benchmark),
        **options,
    )


def _source_count(number: int | str) -> int | str:
    """A number of domains, or ``all``."""
    if number == "all":
        return "all"
    if not str(number).isdecimal():
        raise SpecError(f"--train-on {number}: write numbers of domains, such as 5,10,all")
    return int(number)


def _fitting_methods(planner: Callable[[list[str]], list[Run]], names: list[str]) -> list[Run]:
    """The runs of all methods that can train on these domains; the others are logged."""
    while True:
        try:
            return planner(names)
        except IncompatibleMethodError as error:
            names = [name for name in names if name != error.method]
            log.warning("left out: %s", error)


def _fitting_merges(dataset: DomainSet, benchmark: Benchmark, methods: int) -> list[str]:
    """The named merges; ``all`` stands for those that need no statistics and fit the experts."""
    if "all" not in benchmark.merges:
        return list(dict.fromkeys(benchmark.merges))
    sources = (len(fold.sources) for fold in benchmark.domain_choice.folds(dataset))
    experts = min(sources) if methods == 1 else methods
    merges = {name: registry.find("merges", name) for name in registry.names("merges")}
    return [name for name, merge in merges.items() if merges_weights(merge, experts)]
