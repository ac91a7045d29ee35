"""From a benchmark to its records: one pipeline for the command line and for Python.

A benchmark is planned, its plan is written into the store (for `afield status`), the missing runs
are done, and the report is written into the store. The room `reporting` comes after this one, so
the function that writes the report is an argument; `afield.bench` and the command line pass it.
"""

import logging
import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from afield import own_code
from afield.compute import hostname
from afield.data.listing import listed_once
from afield.runs.pool import Pool
from afield.runs.record import Failure, Plan, Record
from afield.runs.run import Run
from afield.runs.runner import execute
from afield.runs.store import Store, open_store
from afield.runs.sweep import complete, sort_outcomes
from afield.runs.tensorboard import TensorBoardWriter
from afield.runs.thumbnails import keep_thumbnails
from afield.studies.benchmark import Benchmark
from afield.studies.commands import benchmark_command
from afield.studies.planning import plan_runs, plan_training

log = logging.getLogger(__name__)

Outcome = Record | Failure


class Observer:
    """Follows a benchmark. Every method does nothing; a subclass overrides what it shows."""

    def planning(self) -> AbstractContextManager[None]:
        """A context around the planning, which may decode or download data."""
        return nullcontext()

    def follow(
        self, outcomes: Iterable[Outcome], runs: Sequence[Run], store: Store, plan: Plan
    ) -> Iterable[Outcome]:
        """Pass on the outcomes as they come, in any order."""
        del runs, store, plan
        return outcomes

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
    with observer.planning():
        runs = plan(benchmark)
    place.prepare()
    written = _write_plan(runs, place, command or benchmark_command(benchmark))
    options |= {"threads": benchmark.threads, "device": benchmark.device or None}
    outcomes = complete(runs, place, pool=pool, **options)
    ordered = sort_outcomes(runs, observer.follow(outcomes, runs, place, written))
    observer.finished(ordered, runs, place)
    if report is not None:
        keep_thumbnails(runs, place)
        _write_report(report, place, observer)
    return ordered


def _write_plan(runs: Sequence[Run], store: Store, command: str) -> Plan:
    plan = Plan(
        keys=tuple(run.key for run in runs),
        known=sum(record is not None for record in store.known(runs)),
        command=command,
        host=hostname(),
        pid=os.getpid(),
        started=time.time(),
    )
    store.put_plan(plan)
    return plan


def _write_report(report: Callable[[Store], str], store: Store, observer: Observer) -> None:
    try:
        path = report(store)
    except Exception as error:  # noqa: BLE001  the runs are done; a report can be written later
        message = " ".join(str(error).split())
        log.warning(
            "the report could not be written (%s); try again with `afield report %s`",
            message,
            store.where(),
        )
    else:
        observer.reported(path)


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
