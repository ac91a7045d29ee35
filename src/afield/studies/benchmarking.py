"""From a benchmark to its records: one pipeline for the command line and for Python.

A benchmark is planned, its plan is written into the store (for `afield status`), the missing runs
are done, and the report is written into the store. The room `reporting` comes after this one, so
the function that writes the report is an argument; `afield.bench` and the command line pass it.

Methods, networks and data may be Python objects. Data in memory are written once to the store, so
that workers and later commands can read them::

    DomainSet, {domain: torch Dataset}, (X, y, domain)    →  an .npz file
    pandas frame, Hugging Face Dataset                     →  a Parquet table

The name of the file ends in a digest of its content: the same data are written only once.
"""

import hashlib
import inspect
import logging
import os
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from afield import own_code, registry
from afield.compute import hostname
from afield.data.domains import DomainSet
from afield.data.listing import listed_once
from afield.errors import DataError, SpecError
from afield.files import sha256
from afield.hyperparameters import defaults
from afield.networks.own_network import own_backbone, weights_digest
from afield.progress import progress
from afield.runs.pool import Pool
from afield.runs.record import Failure, Plan, Record, describe_size, format_days
from afield.runs.run import Run
from afield.runs.runner import execute
from afield.runs.store import Store, open_store
from afield.runs.sweep import complete, sort_outcomes
from afield.runs.tensorboard import TensorBoardWriter
from afield.runs.thumbnails import keep_thumbnails
from afield.runs.work import put_plan
from afield.studies.benchmark import Benchmark
from afield.studies.commands import benchmark_command
from afield.studies.planning import plan_runs, plan_training
from afield.training.method import Method
from afield.training.own_classifier import (
    classifier_name,
    classifier_source,
    is_classifier,
    own_classifier,
)

if TYPE_CHECKING:
    import pandas as pd


log = logging.getLogger(__name__)


def dataset_spec(data: Any, folder: Path) -> str:
    """The name or path of a dataset; data in memory are written into the folder first."""
    import pandas as pd

    if isinstance(data, str | Path):
        return str(data)
    if isinstance(data, DomainSet):
        if data.origin or data.name in registry.names("datasets"):
            return data.spec
        return _write(folder, data.name, ".npz", lambda path: _save(path, _domain_arrays(data)))
    if isinstance(data, pd.DataFrame):
        return _write(folder, "frame", ".parquet", lambda path: _save_frame(path, data))
    if callable(getattr(data, "to_parquet", None)):
        return _write(folder, "dataset", ".parquet", data.to_parquet)
    if isinstance(data, Mapping):
        return _write(folder, "datasets", ".npz", lambda path: _save(path, _mapped_arrays(data)))
    if isinstance(data, tuple) and len(data) == 3:
        names = ("X", "y", "domain")
        arrays = {name: _array(each) for name, each in zip(names, data, strict=True)}
        return _write(folder, "arrays", ".npz", lambda path: _save(path, arrays))
    raise SpecError(
        f"dataset: {type(data).__name__} is not data; give a name, a path, a DomainSet, a mapping "
        "of domains to torch Datasets, (X, y, domain), or a data frame"
    )


def _write(folder: Path, name: str, suffix: str, save: Callable[[Path], Any]) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f"{name}.{uuid.uuid4().hex}.part{suffix}"
    try:
        save(temporary)
        path = folder / f"{name}-{sha256(temporary)[:12]}{suffix}"
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return str(path)


def _save(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    np.savez(path, **arrays)  # type: ignore[arg-type]


def _save_frame(path: Path, frame: "pd.DataFrame") -> None:
    try:
        frame.to_parquet(path, index=False)
    except ImportError:
        raise SpecError("data frames need pyarrow; try: pip install 'afield[parquet]'") from None
    except (ValueError, TypeError) as error:
        reason = " ".join(str(error).split())[:160]
        raise DataError(f"the data frame cannot be written as Parquet ({reason})") from None


def _domain_arrays(dataset: DomainSet) -> dict[str, NDArray[Any]]:
    domains = dataset.load()
    rows = [(name, len(domain.y)) for name, domain in domains.items()]
    arrays = {
        "X": torch.cat([domain.x for domain in domains.values()]).numpy(),
        "y": np.array(dataset.classes)[torch.cat([d.y for d in domains.values()]).numpy()],
        "domain": np.concatenate([np.full(count, name) for name, count in rows]),
    }
    tests = [domain.test for domain in domains.values()]
    if all(test is not None for test in tests):
        arrays["test"] = torch.cat([test for test in tests if test is not None]).numpy()
    return arrays


def _mapped_arrays(datasets: Mapping[Any, Any]) -> dict[str, NDArray[Any]]:
    x, y, domain = [], [], []
    for name, dataset in datasets.items():
        if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
            raise DataError(f"domain {name!r}: {type(dataset).__name__} is no torch Dataset")
        for row in range(len(dataset)):
            sample, label = dataset[row][:2]
            x.append(_array(sample))
            y.append(label.item() if isinstance(label, torch.Tensor) else label)
            domain.append(str(name))
    shapes = {sample.shape for sample in x}
    if len(shapes) != 1:
        raise DataError(f"samples of different shapes ({sorted(shapes)[:3]}); resize them first")
    return {"X": np.stack(x), "y": np.array(y), "domain": np.array(domain)}


def _array(values: Any) -> NDArray[Any]:
    """Values as an array without objects, which could only be pickled."""
    array = (
        values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)
    )
    return array.astype(str) if array.dtype.kind == "O" else array


def accept_objects(words: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The words of a benchmark with names in place of objects, which are registered.

    Data in memory are written into the folder. Files and modules of code are loaded: who calls
    this passes them in Python.
    """
    accepted = own_code.accept(words)
    settings = dict(accepted.get("settings") or {})
    dataset = accepted.get("dataset")
    if isinstance(dataset, list) or (isinstance(dataset, tuple) and _are_names(dataset)):
        accepted["dataset"] = [dataset_spec(each, folder) for each in dataset]
    elif dataset is not None:
        accepted["dataset"] = dataset_spec(dataset, folder)
    methods = accepted.get("methods")
    if methods is not None and not isinstance(methods, str):
        several = methods if isinstance(methods, list | tuple) else [methods]
        accepted["methods"] = [_method_name(each, settings) for each in several]
    for place in (accepted, settings):
        if place.get("backbone") is not None:
            place["backbone"] = _backbone_name(place["backbone"])
    return {**accepted, "settings": settings} if settings else accepted


def _are_names(values: tuple[Any, ...]) -> bool:
    return all(isinstance(value, str | Path) for value in values)


def _method_name(method: Any, settings: dict[str, Any]) -> str:
    """The name of a method; the fields of an object become settings."""
    if isinstance(method, str):
        return method
    kind = method if isinstance(method, type) else type(method)
    if not issubclass(kind, Method) and is_classifier(method):
        made = method() if isinstance(method, type) else method
        name, source = classifier_name(made), classifier_source(made)
        return own_code.register("methods", name, own_classifier(made), source=source, payload=made)
    if not issubclass(kind, Method):
        raise SpecError(
            f"methods: {kind.__name__} is neither a Method nor a classifier of scikit-learn; "
            "extend afield.training.Method"
        )
    name = _registered_name(kind)
    if isinstance(method, Method) and is_dataclass(method):
        usual = defaults(kind)
        for each in fields(method):
            value = getattr(method, each.name)
            if each.name in usual and value != usual[each.name]:
                settings[f"{name}.{each.name}"] = value
    return name


def _registered_name(kind: type[Method]) -> str:
    for name in (*registry.builtin_names("methods"), *registry.builtin_names(registry.CLASSICAL)):
        if kind.__module__.rpartition(".")[2] == name and registry.find("methods", name) is kind:
            return name
    return own_code.register("methods", kind.__name__, kind, source=_source(kind))


def _backbone_name(network: Any) -> str | list[str]:
    """The name of a network, or the names of several."""
    if isinstance(network, list | tuple):
        return [_one_backbone_name(each) for each in network]
    return _one_backbone_name(network)


def _one_backbone_name(network: Any) -> str:
    """The name of a network: its own, with digests of its source and, of a module, its weights.

    A function has no weights before a run: they follow from its source, the shape of the data and
    the run's seed, which is derived from the run's key and hence from this name. The record has
    their digest, so that a function whose result depends on anything else can be noticed.
    """
    if isinstance(network, str):
        return network
    if not callable(network):
        raise SpecError(
            f"backbone: {type(network).__name__} is no network; give a name, an nn.Module or a "
            "function of (shape, classes)"
        )
    source = _source(type(network) if isinstance(network, nn.Module) else network)
    if isinstance(network, nn.Module):
        source += weights_digest(network)
    kind = own_backbone(network)
    named = type(network) if isinstance(network, nn.Module) else network
    name = f"{named.__name__}_{hashlib.sha256(source.encode()).hexdigest()[:12]}"
    return own_code.register("backbones", name, kind, source=source, payload=network)


def _source(value: Any) -> str:
    try:
        return inspect.getsource(value)
    except (OSError, TypeError):
        name = getattr(value, "__name__", value)
        raise SpecError(
            f"{name}: its source cannot be found, so records could not name its version; define "
            "it in a file"
        ) from None


Outcome = Record | Failure


class Observer:
    """Follows a benchmark. Every method does nothing; a subclass overrides what it shows."""

    def busy(self) -> AbstractContextManager[None]:
        """A context around all that reports its progress: reading data, planning, the report."""
        return nullcontext()

    def follow(
        self, outcomes: Iterable[Outcome], runs: Sequence[Run], store: Store, plan: Plan
    ) -> Iterable[Outcome]:
        """Pass on the outcomes as they come, in any order."""
        del runs, store, plan
        return outcomes

    def hand_over(self, store: Store, plan: Plan) -> bool:
        """Called if runs are missing; True means that others do them, so nothing is done here."""
        del store, plan
        return False

    def finished(self, outcomes: Sequence[Outcome], runs: Sequence[Run], store: Store) -> None:
        """Called with all outcomes in the order of their runs, before the report is written."""

    def reported(self, path: str) -> None:
        """Called with the path of the report."""


@listed_once()
def run_benchmark(
    benchmark: Benchmark,
    *,
    plan: Callable[[Benchmark], list[Run]] = plan_runs,
    report: Callable[[Store], str] | None = None,
    store: str | Path | Store | None = None,
    pool: Pool | None = None,
    observer: Observer | None = None,
    command: str = "",
    tensorboard: bool = False,
    **options: Any,
) -> list[Outcome]:
    """Do the missing runs of a benchmark; return the outcomes of all in the order of the plan.

    Parameters
    ----------
    benchmark
        What to compare.
    plan
        Makes the runs of the benchmark; a recipe has several benchmarks and plans all of them.
    report
        Writes the report into a store and returns its path.
    store, pool
        Replace the benchmark's own.
    observer
        Shows the progress and the results.
    command
        The words that asked for it, for `afield status`; by default those of the shell.
    tensorboard
        Whether to write curves for TensorBoard into the store.
    options
        As in `execute`.
    """
    observer = observer or Observer()
    pool = pool or benchmark.pool()
    place = open_store(benchmark.store if store is None else store)
    if tensorboard:
        options["watch"] = TensorBoardWriter(f"{place.where()}/tensorboard")
    with observer.busy():
        runs = plan(benchmark)
        with progress(f"looking for {len(runs)} runs in {place.where()}"):
            place.prepare()
            _log_changed_data(runs, place)
            written = _write_plan(runs, place, benchmark, command)
    if written.known < len(runs) and observer.hand_over(place, written):
        return []
    options |= {"threads": benchmark.threads, "device": benchmark.device or None}
    outcomes = complete(runs, place, pool=pool, **options)
    ordered = sort_outcomes(runs, observer.follow(outcomes, runs, place, written))
    observer.finished(ordered, runs, place)
    if report is not None:
        with observer.busy(), progress("writing the report"):
            keep_thumbnails(runs, place)
            path = _write_report(report, place)
        if path is not None:
            observer.reported(path)
    return ordered


def _log_changed_data(runs: Sequence[Run], store: Store) -> None:
    """Say that everything is trained again if the store knows other contents of the same data."""
    asked = {(run.data_name, run.encoder): run.data for run in runs if run.data}
    if not asked or any(record is not None for record in store.known(runs)):
        return
    older: dict[tuple[str, str | None], list[Record]] = {}
    for record in store:
        data = (record.run.data_name, record.run.encoder)
        if asked.get(data, record.run.data) != record.run.data:
            older.setdefault(data, []).append(record)
    for data, records in older.items():
        last = max(records, key=lambda record: record.at)
        same = [record for record in records if record.run.data == last.run.data]
        facts = filter(None, [describe_size(same), format_days({"": last.at})[""]])
        count = sum(asked.get((run.data_name, run.encoder)) == asked[data] for run in runs)
        log.warning(
            "%s has changed since its last results in %s (%s), so all %d runs are trained again; "
            "the old results stay in the store",
            data[0],
            store.where(),
            ", ".join(facts) or last.run.data[:6],
            count,
        )


def _write_plan(runs: Sequence[Run], store: Store, benchmark: Benchmark, command: str) -> Plan:
    plan = Plan(
        keys=tuple(run.key for run in runs),
        known=sum(record is not None for record in store.known(runs)),
        command=command or benchmark_command(benchmark),
        host=hostname(),
        pid=os.getpid(),
        started=time.time(),
        threads=benchmark.threads,
        device=benchmark.device or "",
    )
    put_plan(plan, runs, store)
    return plan


def _write_report(report: Callable[[Store], str], store: Store) -> str | None:
    """Write the report and return its path; None, with a warning, if it cannot be written."""
    try:
        return report(store)
    except Exception as error:  # noqa: BLE001  the runs are done; a report can be written later
        message = " ".join(str(error).split())
        log.warning(
            "the report could not be written (%s); try again with `afield report %s`",
            message,
            store.where(),
        )
        return None


@listed_once()
def train(
    dataset: str | Path,
    method: str,
    *,
    target: str | Sequence[str] = (),
    store: str | Path | Store = "runs",
    trial: int = 0,
    draw: int = 0,
    average: str = "last",
    finetune: bool | None = None,
    start: str = "",
    settings: dict[str, Any] | None = None,
    **options: Any,
) -> Record:
    """Train one model on all domains but the target; return its record, which the store keeps.

    Parameters
    ----------
    dataset, method
        Name or path of a dataset; name of a method.
    target
        The domain or domains to leave out; empty means to train on all domains.
    store
        The folder or address of the records.
    trial, draw, average, settings
        As in `resolve_run`.
    finetune, start
        As in a benchmark.
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
    words = {"dataset": str(dataset), "method": method, "average": average}
    dataset, method, average = own_code.accept(words).values()
    runs = plan_training(
        dataset,
        method,
        target=target,
        trial=trial,
        draw=draw,
        average=average,
        finetune=finetune,
        start=start,
        settings=settings,
    )
    return [execute(run, open_store(store), **options) for run in runs][-1]
