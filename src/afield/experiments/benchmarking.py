"""The main jobs as functions, the same for the command line and for Python: bench and train."""

import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

from afield import registry
from afield.data.domains import DomainSet, missing_class_warnings
from afield.data.lookup import find_dataset
from afield.errors import IncompatibleMethodError, SpecError
from afield.experiments.merge_protocol import merging_runs
from afield.experiments.pools import Local, Pool
from afield.experiments.protocol import hold_out, leave_one_out
from afield.experiments.record import DEFAULT_RULES, Failure, Record, Run
from afield.experiments.remote_store import open_store
from afield.experiments.run_data import RunData
from afield.experiments.run_setup import load_domains
from afield.experiments.runner import execute
from afield.experiments.selection import RULES, resolve_rules
from afield.experiments.settings import check_settings, resolve_run, settings_of
from afield.experiments.store import Store
from afield.experiments.sweep import complete, sort_outcomes
from afield.merging.scopes import merges_weights
from afield.networks.backbone import HUB, network
from afield.progress import progress

__all__ = ["DEFAULT_METHODS", "bench", "plan_run", "plan_runs", "train"]

log = logging.getLogger(__name__)

# The short list of `afield bench`; ``all`` is every file of methods/.
DEFAULT_METHODS = ("erm", "groupdro", "arith")


def plan_runs(
    dataset: str | Path,
    methods: str | Sequence[str] | None = None,
    *,
    rules: str | Sequence[str] | None = None,
    test: float = 0.0,
    validate: float = 0.1,
    train_on: Sequence[int | None] = (),
    merges: str | Sequence[str] = (),
    expert_methods: str | Sequence[str] = "erm",
    base_steps: int | None = None,
    **options: Any,
) -> list[Run]:
    """The runs of a benchmark, after reading and checking the data.

    Parameters
    ----------
    dataset
        A name, or the path of a user's own data.
    methods
        Names of methods; ``all`` stands for every one.
    rules
        Selection rules; ``all`` stands for every one, and adds the runs that they need.
    test, validate
        The shares of the domains to hold out, where there are many; without them, each domain is
        left out once.
    train_on
        With held-out shares, how many of the other domains to train on, as in `hold_out`.
    merges, expert_methods, base_steps
        Merges of experts to be compared with the methods, as in `merging_runs`; without names of
        methods, by themselves. ``all`` stands for every merge that can be.
    options
        As in `leave_one_out`.
    """
    merges, makers = _listed(merges), list(dict.fromkeys(_listed(expert_methods)))
    if not merges and (base_steps or makers != ["erm"]):
        raise SpecError("--expert-method and --base-steps go with --merges: nothing is merged")
    usual = () if merges else DEFAULT_METHODS
    names = [methods] if isinstance(methods, str) else list(methods or usual)
    every = "all" in names
    if every:
        names = registry.names("methods")
    for name in names:
        registry.find("methods", name)
    found = find_dataset(dataset)
    found.check_available()
    names = list(dict.fromkeys(names))
    asked = [rules] if isinstance(rules, str) else rules
    wanted = asked if asked is None else _fitting_rules(asked, found, test, validate)
    settings = options.pop("settings", None) or {}
    experts = makers if merges else []
    merged = _fitting_merges(found, merges, len(experts))
    owners = [*merged, *experts, *(["linear_probe"] if merges else [])]
    check_settings(settings, [*names, *owners, options.get("average", "last")])
    options["settings"] = settings_of(settings, *names, options.get("average", "last"))
    planner: Callable[[list[str]], list[Run]]
    if test:
        shares: dict[str, Any] = {"test": test, "validate": validate, "train_on": train_on}
        planner = partial(hold_out, found, rules=wanted, **shares, **options)
    elif train_on:
        raise SpecError("--train-on goes with --hold-out: each domain is left out from all others")
    else:
        planner = partial(leave_one_out, found, rules=wanted or DEFAULT_RULES, **options)
    runs = (_of_fitting_methods(planner, names) if every else planner(names)) if names else []
    if merges:
        if test:
            raise SpecError("--merges goes with each domain left out once; leave --hold-out out")
        options["settings"] = settings_of(settings, *owners, options.get("average", "last"))
        chosen: dict[str, Any] = {"expert_methods": experts, "base_steps": base_steps}
        runs += merging_runs(found, merged, rules=wanted or DEFAULT_RULES, **chosen, **options)
    _check(found, runs[0])
    return runs


def bench(
    dataset: str | Path = "rotated_digits",
    methods: str | Sequence[str] | None = None,
    *,
    store: str | Path | Store = "runs",
    workers: int = 1,
    pool: Pool | None = None,
    threads: int = 1,
    device: str | None = None,
    **options: Any,
) -> list[Record]:
    """Leave one domain out with several methods; return the records, kept in the store.

    What is in the store already is not done again; a run that fails is logged and left out.

    Parameters
    ----------
    dataset, methods
        A name or the path of one's own data; names of methods, by default a short list.
    store
        The folder of the records, or an address such as ``s3://bucket/runs``.
    workers, pool
        How many processes to use, or where else to do it, such as ``afield.Ray()``.
    threads, device
        As in `execute`.
    options
        As in `plan_runs` and `leave_one_out`: rules, test, validate, trials, draws, average,
        settings.

    Examples
    --------
    >>> import tempfile, afield
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     records = afield.bench("spirals", ["erm"], trials=1, store=folder)
    >>> [record.unseen for record in records]
    [('turn0',), ('turn10',), ('turn20',), ('turn30',)]
    """
    place = open_store(store)
    runs = plan_runs(dataset, methods, **options)
    found = complete(runs, place, pool=pool or Local(workers), threads=threads, device=device)
    outcomes = sort_outcomes(runs, found)
    for failure in outcomes:
        if isinstance(failure, Failure):
            log.error("%s failed: %s", failure.run.key, failure.error)
    return [outcome for outcome in outcomes if isinstance(outcome, Record)]


def train(
    dataset: str | Path,
    method: str,
    *,
    target: str | Sequence[str] = (),
    store: str | Path | Store = "runs",
    trial: int = 0,
    draw: int = 0,
    average: str = "last",
    settings: dict[str, Any] | None = None,
    **options: Any,
) -> Record:
    """Train one model on all domains but the target; return its record, kept in the store.

    Parameters
    ----------
    dataset, method
        A name or the path of one's own data; the name of a method.
    target
        The domain or domains to leave out; none trains on all of them.
    store
        The folder of the records.
    trial, draw, average, settings
        As in `resolve_run`.
    options
        As in `execute`.

    Examples
    --------
    >>> import tempfile, afield
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     record = afield.train("spirals", "vrex", target="turn10", store=folder)
    >>> record.checkpoints[-1].scores["turn10"].main.accuracy > 0.9
    True
    """
    run = plan_run(
        dataset,
        method,
        target=target,
        trial=trial,
        draw=draw,
        average=average,
        settings=settings,
    )
    place = open_store(store)
    return execute(run, place, **options)


def plan_run(
    dataset: str | Path, method: str, *, target: str | Sequence[str] = (), **options: Any
) -> Run:
    """The run that trains on all domains but the target; `options` as in `resolve_run`."""
    found = find_dataset(dataset)
    found.check_available()
    left_out = (target,) if isinstance(target, str) else tuple(target)
    run = resolve_run(found, method, found.without(*left_out), **options)
    _check(found, run)
    return run


def _of_fitting_methods(planner: Callable[[list[str]], list[Run]], names: list[str]) -> list[Run]:
    """The runs of all methods that can be trained on so many domains, with a word on the others."""
    while True:
        try:
            return planner(names)
        except IncompatibleMethodError as error:
            names = [name for name in names if name != error.method]
            log.warning("left out: %s", error)


def _listed(names: str | Sequence[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _fitting_merges(dataset: DomainSet, asked: Sequence[str], methods: int) -> list[str]:
    """The merges that were asked for; ``all`` are those that need no statistics and fit."""
    if "all" not in asked:
        return list(dict.fromkeys(asked))
    experts = len(dataset.domains) - 1 if methods == 1 else methods
    merges = {name: registry.find("merges", name) for name in registry.names("merges")}
    return [name for name, merge in merges.items() if merges_weights(merge, experts)]


def _fitting_rules(
    asked: Sequence[str], dataset: DomainSet, test: float, validate: float
) -> tuple[str, ...]:
    """The rules that were asked for; ``all`` are those that can read such a benchmark."""
    found, fitting = resolve_rules(asked), tuple(rule for rule in RULES if rule != "validation")
    if test:
        # Only the checkpoint that is deployed is read on the unseen domains.
        fitting = ("validation" if round(validate * len(dataset.domains)) else "sources", "target")
    if "all" in asked:
        return fitting
    unfit = [rule for rule in found if rule not in fitting]
    if unfit:
        raise SpecError(
            f"the rule {unfit[0]} cannot read a benchmark with --hold-out {test:g} "
            f"--validate {validate:g}; use --rules {','.join(fitting)}"
        )
    return found


def _check(dataset: DomainSet, run: Run) -> None:
    """Read the data and build the network before anything is trained; tell what is odd."""
    domains = load_domains(dataset, run)
    for gap in missing_class_warnings(domains, dataset.classes):
        log.warning("%s: %s", dataset.name, gap)
    dropped = sum(len(domain.broken) for domain in domains.values())
    if dropped:
        log.warning("%s: %d broken file(s) left out", dataset.name, dropped)
    shape = RunData.of(run, dataset, domains, torch.device("cpu")).shape
    if run.size and len(shape) != 3:
        raise SpecError(f"size={run.size}: {dataset.name} has no pictures; leave it out")
    # What comes from the hub may take its time. The caller's random numbers stay as they are.
    waiting = progress(f"weights of {run.backbone}") if run.weights == HUB else nullcontext()
    with waiting, torch.random.fork_rng(devices=[]):
        classes = dataset.classes
        network(run.backbone, shape, len(classes), weights=run.weights, class_names=classes)
