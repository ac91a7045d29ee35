"""`afield.bench`: a benchmark from the question to the report, in Python."""

import logging
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from afield.progress import show_progress, track
from afield.reporting.bench_options import BenchOptions, explicit_signature
from afield.reporting.bench_result import BenchResult
from afield.reporting.page import write_report
from afield.runs.pool import Pool
from afield.runs.record import Failure, Plan, Record
from afield.runs.run import Run
from afield.runs.store import Store, open_store
from afield.studies.benchmark import make_benchmark
from afield.studies.benchmarking import Observer, Outcome, accept_objects, run_benchmark
from afield.training.metrics import DEFAULT_METRIC

log = logging.getLogger(__name__)


def bench(
    dataset: Any = "rotated_digits",
    methods: Any = (),
    *,
    store: str | Path | Store = "runs",
    pool: Pool | None = None,
    tensorboard: bool = False,
    quiet: bool = False,
    **options: Unpack[BenchOptions],
) -> BenchResult:
    """Compare methods on unseen domains; return the records, which the store keeps.

    It does what ``afield bench`` does: the store gets the records, the plan for `afield status` and
    the report. Runs that the store already has are not repeated. A run that fails is logged and
    left out of the result. The result is a list of records that prints as their table, with the
    methods ``table``, ``report`` and ``plot`` and the attribute ``best``.

    Parameters
    ----------
    dataset, methods
        Names or paths of datasets; names of methods, by default a short list. A dataset may also
        be a `DomainSet`, a mapping of domains to torch Datasets, a tuple (X, y, domain), a pandas
        frame or a Hugging Face Dataset; it is written once into the folder ``data`` of the store.
        A method may also be a file, a `Method` class or an object with its settings.
    store
        The folder of the records, or an address such as ``s3://bucket/runs``.
    pool
        Where to do the runs, such as ``afield.Ray()``; by default one process, or `workers`.
    tensorboard
        Whether to write curves for TensorBoard into the store.
    quiet
        Whether to show no progress, which otherwise appears on a terminal and in a notebook.
    options
        Options of ``afield bench`` and settings of the runs, as in `make_benchmark`: trials, draws,
        rules, hold_out, merges, average, workers, device, threads, steps and so on. `backbone` may
        also be an ``nn.Module`` or a function of (shape, classes) that returns one.

    Examples
    --------
    >>> import tempfile, afield
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     records = afield.bench("spirals", ["erm"], trials=1, store=folder)
    >>> [record.unseen for record in records]
    [('turn0',), ('turn10',), ('turn20',), ('turn30',)]
    >>> records.best.method
    'erm'
    """
    if pool is None and options.get("on", "local") == "local":
        options.setdefault("workers", 1)
    store = open_store(store)
    words = {"dataset": dataset, "methods": methods, **options}
    benchmark = make_benchmark(**accept_objects(words, store.root / "data"))
    with show_progress(quiet=quiet):
        outcomes = run_benchmark(
            benchmark,
            report=partial(write_report, rules=benchmark.rules),
            store=store,
            pool=pool,
            observer=_Bars(),
            tensorboard=tensorboard,
        )
    for outcome in outcomes:
        if isinstance(outcome, Failure):
            log.error("%s failed: %s", outcome.run.key, outcome.error)
    records = [outcome for outcome in outcomes if isinstance(outcome, Record)]
    return BenchResult(
        records,
        failures=[outcome for outcome in outcomes if isinstance(outcome, Failure)],
        store=store,
        rules=benchmark.rules,
        metric=records[0].run.metric or DEFAULT_METRIC if records else DEFAULT_METRIC,
    )


class _Bars(Observer):
    """Reports how many runs are done, for whoever listens to progress."""

    def follow(
        self, outcomes: Iterable[Outcome], runs: Sequence[Run], store: Store, plan: Plan
    ) -> Iterable[Outcome]:
        """Pass on the outcomes, and count them."""
        del store, plan
        return track(outcomes, "runs", len(runs))


# Editors and notebooks complete the names of all options.
bench.__signature__ = explicit_signature(bench, BenchOptions)  # type: ignore[attr-defined]
