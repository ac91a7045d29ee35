"""Whether runs are possible, before anything is trained, and which classes they know."""

import logging
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch

from afield import registry
from afield.compute import preserve_torch_state
from afield.data.domains import (
    ClassesByDomain,
    DomainSet,
    classes_by_domain,
    data_root,
    missing_class_warnings,
    relabel,
    uses_all_classes,
)
from afield.data.scaling import extreme_value_warnings
from afield.errors import SpecError
from afield.networks.backbone import HUB, find_backbone, network
from afield.progress import progress
from afield.runs.run import Run
from afield.runs.run_data import RunData, truncation_warnings
from afield.runs.run_setup import (
    PLACEHOLDER_METHOD,
    Machine,
    TrainingState,
    freeze,
    load_domains,
    run_adaptation,
    run_prompts,
    set_up_on,
)
from afield.studies.benchmark import START, check_classes_choice
from afield.studies.settings import Settings, resolve_run

log = logging.getLogger(__name__)

# Roles of runs that train a method in the usual way, and of the ensembles of such runs.
TRAINED_ROLES = ("", "member", "ensemble")


def possible_runs(dataset: DomainSet, runs: Sequence[Run], *, every: bool) -> list[Run]:
    """The runs whose parts go together; others are refused, or logged if all methods are asked for.

    Some methods need a certain kind of network. Starts and adaptations depend on the network that a
    method makes.
    """
    reasons: dict[tuple[str, ...], str] = {}
    for run in runs:
        combination = _combination(run)
        if combination and combination not in reasons:
            reasons[combination] = reason = _conflict(dataset, run)
            if reason and not every:
                raise SpecError(reason)
            if reason:
                log.warning("left out: %s", reason)
    return [run for run in runs if not reasons.get(_combination(run))]


def _combination(run: Run) -> tuple[str, ...]:
    """What must go together in a run; empty if everything does."""
    role = "" if run.role in TRAINED_ROLES else run.role
    starts = "" if role else run.base
    method = PLACEHOLDER_METHOD if run.experts else run.method
    plain = not starts and not run.adaptation and not _needs_fitted_start(run)
    if plain and not registry.find("methods", method).may_refuse_network:
        return ()
    return method, run.average, run.adaptation, "start" if starts else role


def _needs_fitted_start(run: Run) -> bool:
    return bool(registry.find("averages", run.average).needs_fitted_start)


def _conflict(dataset: DomainSet, run: Run) -> str:
    """Why a run is impossible; empty if it is not."""
    zero_shot = find_backbone(run.backbone).zero_shot and run.weights
    if _needs_fitted_start(run) and not run.base and not zero_shot:
        return (
            f"--average {run.average} uses the first weights of a run, but their head is random; "
            f"add --start {START}"
        )
    starts = run.role in TRAINED_ROLES and run.base
    if starts and run.method == START:
        return f"{START} cannot start from itself; leave it out of --methods, or --start out"
    try:
        state = _set_up_untrained(dataset, run)
        if run.adaptation:
            run_adaptation(run).check(state.learner.model)
    except SpecError as error:
        adapting = f" with --adapt {run.adaptation}" if run.adaptation else ""
        message = str(error)
        return message if message.startswith(run.method) else f"{run.method}{adapting}: {message}"
    if starts and not state.keeps_network:
        return f"{run.method} trains other weights than the network's, so --start has no effect"
    return ""


def _set_up_untrained(dataset: DomainSet, run: Run) -> TrainingState:
    """The network of a run and what its method adds, with random weights."""
    plain = replace(run, base="", adaptation="", weights="", start="")
    machine = Machine(torch.device("cpu"), 1, data_root())
    with preserve_torch_state(cuda=False):
        return set_up_on(dataset, load_domains(dataset, run), plain, machine)


def check_data_and_network(dataset: DomainSet, run: Run) -> None:
    """Read the data and build the network before anything is trained; log what is unusual."""
    domains = load_domains(dataset, replace(run, classes=()))
    for gap in missing_class_warnings(domains, dataset.classes):
        log.warning("%s: %s", dataset.name, gap)
    for unusual in (*extreme_value_warnings(domains), *truncation_warnings(run, domains)):
        log.warning("%s: %s", dataset.name, unusual)
    dropped = sum(len(domain.broken) for domain in domains.values())
    if dropped:
        log.warning("%s: %d broken file(s) left out", dataset.name, dropped)
    data = RunData.of(run, dataset, domains, torch.device("cpu"))
    shape = data.shape
    for misfit in data.scaling.misfits(domains):
        log.warning("%s: %s", dataset.name, misfit)
    if run.size and len(shape) != 3:
        raise SpecError(f"size={run.size}: {dataset.name} has no images; leave it out")
    # Weights from the hub may take a while. The caller's random state is restored.
    waiting = progress(f"weights of {run.backbone}") if run.weights == HUB else nullcontext()
    with waiting, preserve_torch_state(cuda=False):
        classes = run.classes or dataset.classes
        prompts = run_prompts(run, dataset)
        options: dict[str, Any] = {"weights": run.weights, "class_names": prompts}
        net = network(run.backbone, shape, len(classes), **options)
        freeze(net, run, shape)


# The note about unseen classes names at most this many domains.
MAX_NAMED_DOMAINS = 5


def read_classes(
    dataset: DomainSet, settings: Settings | None = None, choice: str | None = None
) -> ClassesByDomain | None:
    """The classes that each domain has; None if the whole list of the dataset is used.

    `settings` are those of the runs, and `choice` is the option ``classes``.
    """
    check_classes_choice(choice)
    if uses_all_classes(dataset, choice):
        return None
    common = {name: value for name, value in (settings or {}).items() if "." not in name}
    run = resolve_run(dataset, "erm", dataset.domains, settings=common)
    return classes_by_domain(load_domains(dataset, run), dataset.classes)


def with_classes_choice(runs: Sequence[Run], dataset: DomainSet, choice: str | None) -> list[Run]:
    """The runs with a choice of classes that is not the default of the dataset."""
    if uses_all_classes(dataset, choice) == uses_all_classes(dataset):
        return list(runs)
    return [replace(run, given={**run.given, "classes": choice}) for run in runs]


def check_unseen_classes(dataset: DomainSet, runs: Sequence[Run]) -> None:
    """Log how many samples have a class that no source has.

    Raises an error if a domain has no other samples.
    """
    counts: dict[str, str] = {}
    for run in {(run.sources, run.classes): run for run in runs if run.classes}.values():
        raw = load_domains(dataset, replace(run, classes=()))
        known = relabel(raw, dataset.classes, run.classes)
        for name in dataset.without(*run.sources, *run.unused):
            unknown = known[name].y < 0
            if unknown.all():
                raise SpecError(
                    f"{dataset.name}: domain {name!r} has no sample of a class that its sources "
                    "have; remove the domain, or use --classes all"
                )
            if unknown.any():
                lacking = [dataset.classes[i] for i in raw[name].y[unknown].unique().tolist()]
                names = ", ".join(map(repr, lacking))
                counts[name] = f"{int(unknown.sum())} of {len(unknown)} in {name!r} ({names})"
    if counts:
        shown = list(counts.values())[:MAX_NAMED_DOMAINS]
        more = len(counts) - len(shown)
        rest = f" and {more} more domains" if more else ""
        log.warning(
            "%s: samples of classes that no source has are left out of the accuracy and reported "
            "apart: %s%s (--classes all trains outputs for them)",
            dataset.name,
            "; ".join(shown),
            rest,
        )
