"""From a benchmark to its runs, after reading and checking the data."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

from afield import own_code, registry
from afield.data.domains import ClassesByDomain, DomainSet, source_classes
from afield.data.frames import name_columns
from afield.data.lookup import find_dataset
from afield.errors import IncompatibleMethodError, SpecError
from afield.hyperparameters import (
    build,
    defaults,
    draw_values,
    split_ranges,
    validate_values,
    without_neutral,
)
from afield.merging.scopes import merges_weights
from afield.networks.backbone import find_backbone
from afield.networks.pretrained import separate_networks
from afield.progress import track
from afield.runs.run import CLASSICAL_ROLE, Run
from afield.runs.selection import DEFAULT_RULES, RULES
from afield.studies.benchmark import (
    DEFAULT_MERGES,
    DEFAULT_METHODS,
    START,
    Benchmark,
    check_start,
)
from afield.studies.checks import (
    check_data_and_network,
    check_unseen_classes,
    possible_runs,
    read_classes,
    with_classes_choice,
)
from afield.studies.features import image_labels, spell_finetune, use_features
from afield.studies.merge_protocol import merging_runs
from afield.studies.protocol import Fold, Protocol
from afield.studies.settings import (
    Settings,
    check_settings,
    reports_whole,
    resolve_run,
    settings_of,
)

log = logging.getLogger(__name__)

# Rows of merges that are not one network, or have seen the labels of the target.
NOT_ADAPTED = ("logit_ensemble", "target_expert")


def plan_runs(
    benchmark: Benchmark,
    *,
    check_inputs: bool = True,
    compute_features: bool = True,
    outlines: Mapping[str, DomainSet] | None = None,
) -> list[Run]:
    """The runs of a benchmark, dataset after dataset.

    Without `check_inputs`, no network is built, and data are read only where the number of steps
    depends on them: with epochs, or for the classes of your own data. Without `compute_features`,
    runs on features that are not in the cache can be counted, but not done; so can runs on
    `outlines`, which are used in place of datasets with missing files.
    """
    _methods(benchmark)
    datasets = {name: (outlines or {}).get(name) for name in benchmark.dataset}
    return [
        run
        for name, dataset in datasets.items()
        for run in _plan_dataset(
            benchmark,
            dataset or asked_dataset(benchmark, name),
            check_inputs=check_inputs,
            compute_features=compute_features,
        )
    ]


def plan_run(dataset: str | Path, method: str, **options: Any) -> Run:
    """The run that trains on all domains but the target; options are those of `plan_training`."""
    return plan_training(dataset, method, **options)[-1]


def plan_training(
    dataset: str | Path,
    method: str,
    *,
    target: str | Sequence[str] = (),
    trial: int = 0,
    draw: int = 0,
    average: str = "last",
    classes: str | None = None,
    finetune: bool | None = None,
    start: str = "",
    settings: Settings | None = None,
) -> list[Run]:
    """The run that trains on all domains but the target, after the one that fits its start, if any.

    `trial` and `draw` are the numbers of the repetition and of the hyperparameter sample; the other
    options are those of a benchmark.
    """
    domain_set = find_dataset(dataset)
    domain_set.check_available()
    domain_set, settings = use_features(domain_set, settings or {}, finetune=finetune)
    left_out = (target,) if isinstance(target, str) else tuple(target)
    protocol = Protocol(left_out=left_out, trials=1, first_trial=trial, first_draw=draw)
    return training_runs(
        domain_set,
        method,
        protocol,
        average=average,
        classes=classes,
        start=start,
        settings=settings,
    )


def training_runs(
    dataset: DomainSet,
    method: str,
    protocol: Protocol,
    *,
    average: str,
    start: str,
    settings: Settings,
    ensemble: int | None = None,
    classes: str | None = None,
) -> list[Run]:
    """The runs of one training, checked: that of a protocol with `left_out`, after its start.

    An ensemble comes after its members.
    """
    check_start(start)
    options = {"--average": average != "last", "--start": start, "--ensemble": ensemble}
    _log_passed_over([method], options)
    known = read_classes(dataset, settings, classes) if protocol.left_out else None
    *needed, run = method_runs(
        dataset,
        [method],
        protocol,
        average=average,
        start=start,
        ensemble=ensemble,
        settings=settings,
        known_classes=known,
    )
    (run,) = with_classes_choice([run], dataset, classes)
    check_unseen_classes(dataset, [run])
    _log_dataset_settings(dataset, [method], average, settings)
    check_data_and_network(dataset, run)
    possible_runs(dataset, [r for r in (*needed, run) if r.role in ("", "ensemble")], every=False)
    return [*needed, run]


def method_runs(
    dataset: DomainSet,
    methods: Sequence[str],
    protocol: Protocol,
    *,
    average: str = "last",
    start: str = "",
    ensemble: int | None = None,
    settings: Settings | None = None,
    known_classes: ClassesByDomain | None = None,
) -> list[Run]:
    """The runs that train methods on every fold of a protocol, after those that fit their starts.

    A rule that needs twins (leave-one-domain-out validation) adds the runs that leave out each pair
    of domains.

    Parameters
    ----------
    dataset, methods, protocol
        The dataset, the names of the methods, and how the domains are divided.
    average, settings
        The weight averaging, and settings that differ from the defaults: ``steps``, ``every``,
        ``batch``, ``lr``, ``weight_decay``, ``backbone``, or those of a method or average, such as
        ``vrex.penalty``.
    start
        ``linear_probe``: training starts from a head fitted on frozen features. Empty: from the
        network's own first weights.
    ensemble
        The number of trainings whose mean prediction is a run as well; the first of them is the
        ordinary run. There is none for twins.
    known_classes
        The classes that each domain has: a fold, with its twins, has outputs for the classes of its
        sources only. None means outputs for all classes of the dataset.

    Examples
    --------
    >>> from afield.data.lookup import find_dataset
    >>> len(method_runs(find_dataset("rotated_digits"), ["erm", "vrex"], Protocol(trials=1)))
    12
    """
    settings = settings or {}
    check_settings(settings, [*methods, average, *filter(None, [start])])
    protocol = protocol.resolved(dataset, whole=reports_whole(settings))
    twin_rules = _twin_rules(dataset, protocol, settings)
    bases: dict[str, Run] = {}
    runs: list[Run] = []
    ensembles: list[Run] = []
    for trial in protocol.trial_numbers:
        folds = [
            replace(fold, classes=source_classes(dataset, known_classes, fold.sources))
            for fold in protocol.folds(dataset, trial)
        ]
        twins = _twins(dataset, folds, twin_rules) if twin_rules else []
        title = f"planning {dataset.name}, trial {trial}"
        for draw in track(protocol.draw_numbers, title, len(protocol.draw_numbers)):
            for fold in (*folds, *twins):
                trains = not all(map(registry.is_classical, methods))
                base = _start_run(dataset, fold, trial, settings) if start and trains else None
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
                    is_classical = run.role == CLASSICAL_ROLE
                    runs.append(_in_fold(run, fold, None if is_classical else base))
                    if ensemble and fold in folds and not is_classical:
                        ensembles += ensemble_runs(runs[-1], ensemble)
    return [*bases.values(), *runs, *ensembles]


def ensemble_runs(run: Run, count: int) -> list[Run]:
    """The further members of an ensemble whose first member is `run`, and the ensemble itself."""
    # A rule that needs twins picks a step, and an ensemble has one checkpoint.
    usable = tuple(rule for rule in run.rules if not RULES[rule].needs_twins) or DEFAULT_RULES
    others = [
        replace(run, role="member", member=number, rules=usable) for number in range(1, count)
    ]
    keys = tuple(member.key for member in (run, *others))
    return [*others, replace(run, role="ensemble", members=keys, rules=usable)]


def _twin_rules(dataset: DomainSet, protocol: Protocol, settings: Settings) -> tuple[str, ...]:
    """The rules of a protocol that need twins, checked."""
    rules = tuple(rule for rule in protocol.rules if RULES[rule].needs_twins)
    if rules and len(dataset.domains) < 3:
        raise SpecError(
            f"{dataset.name} has {len(dataset.domains)} domains: the rule {rules[0]} needs three, "
            f"so that one is left to train on; use --rules {','.join(DEFAULT_RULES)}"
        )
    if rules and settings.get("epochs"):
        raise SpecError(
            f"epochs: the rule {rules[0]} compares runs at the same step, and epochs take other "
            "numbers of steps on other domains; use --steps"
        )
    return rules


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


def _start_run(dataset: DomainSet, fold: Fold, trial: int, settings: Settings) -> Run:
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


def _in_fold(run: Run, fold: Fold, base: Run | None) -> Run:
    """The run with the base, the unused domains and the label of its fold."""
    run = replace(run, unused=fold.unused, given={**run.given, **fold.given})
    if base is None:
        return run
    start: dict[str, Any] = {"start": base.method}
    usual = defaults(registry.find("methods", base.method))
    start |= {f"{base.method}.{k}": v for k, v in base.params.items() if v != usual[k]}
    return replace(run, base=base.key, given={**run.given, **start})


def check_run(run: Run) -> None:
    """Check a run that was read from a record as strictly as one that is planned."""
    if run.is_derived:
        option = "--adapt" if run.adaptation else "--ensemble" if run.members else "--merges"
        raise SpecError(f"{run.key}: this model is not trained; bench with {option} makes it")
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
    folds = benchmark.protocol.choice.folds(dataset) if plain else []
    mergeable = bool(folds) and min(len(fold.sources) for fold in folds) > 1
    merges = DEFAULT_MERGES if mergeable else ()
    classical = dataset.modality.classical_methods
    # Pixels are all that they would see where a pretrained network is fine-tuned.
    backbone = find_backbone(benchmark.settings.get("backbone", dataset.training.backbone))
    if dataset.modality.resizable and backbone.is_pretrained():
        classical = ()
    return replace(benchmark, methods=(*DEFAULT_METHODS, *classical), merges=merges)


def asked_dataset(asked: Benchmark, name: str) -> DomainSet:
    """A dataset of a benchmark, with the columns of a table that the benchmark names."""
    columns = {"label": asked.label, "domain": asked.domain, "text": asked.text}
    columns |= {"types": asked.column_types, "drop": asked.drop}
    return find_dataset(name_columns(name, **columns))


def _plan_dataset(
    asked: Benchmark, dataset: DomainSet, *, check_inputs: bool, compute_features: bool
) -> list[Run]:
    """The runs on one dataset, network after network."""
    if check_inputs:
        dataset.check_available()
    return [
        run
        for settings in separate_networks(asked.settings)
        for run in _plan_network(
            replace(asked, settings=settings),
            dataset,
            check_inputs=check_inputs,
            compute_features=compute_features,
        )
    ]


def _plan_network(
    asked: Benchmark, dataset: DomainSet, *, check_inputs: bool, compute_features: bool
) -> list[Run]:
    """The runs of one network on one dataset."""
    given, finetune = spell_finetune(asked.settings, finetune=asked.finetune)
    dataset, remaining = use_features(dataset, given, finetune=finetune, compute=compute_features)
    labels = image_labels(dataset, given, finetune=finetune)
    asked = replace(asked, settings=remaining)
    benchmark = _with_defaults(_published_task(asked, dataset), dataset)
    # Methods that nobody asked for by name are left out where they do not fit.
    every = not asked.methods or "all" in asked.methods
    methods = _methods(benchmark)
    protocol = benchmark.protocol.resolved(dataset, whole=reports_whole(benchmark.settings))
    shared: dict[str, Any] = {
        "average": benchmark.average,
        "known_classes": read_classes(dataset, benchmark.settings, benchmark.classes),
    }
    experts = list(dict.fromkeys(benchmark.expert_method)) if benchmark.merges else []
    draws = benchmark.expert_draws or 0
    merges = _fitting_merges(dataset, benchmark, draws or len(experts))
    merge_owners = [*merges, *experts, *([START] if merges else [])]
    adaptations = _adaptations(benchmark)
    if adaptations and benchmark.ensemble:
        log.warning("--adapt changes one network, so the rows of ensembles are not adapted")
    options = {"--average": benchmark.average != "last", "--start": benchmark.start}
    options |= {"--ensemble": benchmark.ensemble, "--adapt": adaptations}
    _log_passed_over(methods, options)
    owners = [*methods, *merge_owners, *filter(None, [benchmark.start]), *adaptations]
    check_settings(benchmark.settings, [*owners, benchmark.average])
    _log_dataset_settings(dataset, [*methods, *experts], benchmark.average, benchmark.settings)
    runs: list[Run] = []
    if methods:
        settings = settings_of(benchmark.settings, *methods, benchmark.start, benchmark.average)
        training = {"start": benchmark.start, "settings": settings, **shared}
        training["ensemble"] = benchmark.ensemble

        def plan(names: list[str]) -> list[Run]:
            return method_runs(dataset, names, protocol, **training)

        runs += _fitting_methods(plan, methods) if every else plan(methods)
    if benchmark.merges:
        settings = settings_of(benchmark.settings, *merge_owners, benchmark.average)
        chosen: dict[str, Any] = {"expert_method": experts, "base_steps": benchmark.base_steps}
        chosen |= {"expert_draws": draws, "baselines": bool(asked.merges)}
        runs += merging_runs(dataset, merges, protocol, settings=settings, **chosen, **shared)
    runs = with_classes_choice(runs, dataset, benchmark.classes)
    runs += adapted_runs(runs, adaptations, benchmark.settings)
    runs = [replace(run, given={**run.given, **labels}) for run in runs]
    return _checked_runs(dataset, runs, every=every) if check_inputs else runs


def _checked_runs(dataset: DomainSet, runs: list[Run], *, every: bool) -> list[Run]:
    """The possible runs, after reading the data and building the network."""
    check_unseen_classes(dataset, runs)
    # Classical methods have no network to check.
    trained = (run for run in runs if run.role != CLASSICAL_ROLE)
    check_data_and_network(dataset, next(trained, runs[0]))
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


def _log_passed_over(methods: Sequence[str], options: Mapping[str, Any]) -> None:
    """Log which of the options that were given do nothing to classical methods."""
    classical = [name for name in methods if registry.is_classical(name)]
    given = [option for option, value in options.items() if value]
    if classical and given:
        log.warning(
            "%s: fitted once, without steps, so %s %s",
            ", ".join(classical),
            ", ".join(given),
            "do not change it" if len(given) > 1 else "does not change it",
        )


def _published_task(benchmark: Benchmark, dataset: DomainSet) -> Benchmark:
    """The benchmark with the domains of a dataset's published task, unless it names others."""
    asked = benchmark.protocol
    if not dataset.test_domains or asked.choice or asked.hold_out:
        return benchmark
    return replace(
        benchmark,
        targets=("+".join(dataset.test_domains),),
        validate_on=dataset.validation_domains,
        settings={"report": "whole", **benchmark.settings},
    )


def _fitting_methods(plan: Callable[[list[str]], list[Run]], names: list[str]) -> list[Run]:
    """The runs of all methods that can train on these domains; the others are logged."""
    while True:
        try:
            return plan(names)
        except IncompatibleMethodError as error:
            names = [name for name in names if name != error.method]
            log.warning("left out: %s", error)


def _fitting_merges(dataset: DomainSet, benchmark: Benchmark, methods: int) -> list[str]:
    """The named merges; ``all`` stands for those that need no statistics and fit the experts."""
    if "all" not in benchmark.merges:
        return list(dict.fromkeys(benchmark.merges))
    sources = (len(fold.sources) for fold in benchmark.protocol.choice.folds(dataset))
    experts = min(sources) if methods == 1 else methods
    merges = {name: registry.find("merges", name) for name in registry.names("merges")}
    return [name for name, merge in merges.items() if merges_weights(merge, experts)]


def adapted_runs(
    runs: Sequence[Run], adaptations: Sequence[str], settings: Settings | None = None
) -> list[Run]:
    """The runs that adapt the model of every row of a table, once with each adaptation.

    Parameters
    ----------
    runs
        Runs of a benchmark; bases, experts and ensembles are not adapted.
    adaptations
        Names of test-time adaptations.
    settings
        Settings of adaptations that differ from the defaults, such as ``t3a.keep``.
    """
    rows = [run for run in runs if run.role in ("", "merged") and run.method not in NOT_ADAPTED]
    return [_adapted(run, name, settings or {}) for name in adaptations for run in rows]


def _adapted(run: Run, name: str, settings: Settings) -> Run:
    kind = registry.find("adaptations", name)
    own = {k.partition(".")[2]: v for k, v in settings.items() if k.startswith(f"{name}.")}
    chosen, ranges = split_ranges(kind, own, name)
    params = {**draw_values(kind, draw=run.draw, trial=run.trial, own=ranges), **chosen}
    build(kind, params)
    usual = defaults(kind)
    given = {f"{name}.{key}": v for key, v in chosen.items() if v != usual[key]}
    given |= {f"{name}.{key}": own[key] for key in ranges}
    return replace(
        run,
        role="adapted",
        base=run.key,
        adaptation=name,
        adaptation_params=without_neutral(kind, params),
        given={**run.given, **given},
        code={**run.code, **own_code.digests(("adaptations", name))},
    )
