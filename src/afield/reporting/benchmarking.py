"""`afield.bench`: a benchmark from the question to the report, in Python."""

import logging
from functools import partial
from pathlib import Path
from typing import Any

from afield.reporting.page import write_report
from afield.runs.pool import Pool
from afield.runs.record import Failure, Record
from afield.runs.store import Store, open_store
from afield.studies.benchmark import make_benchmark
from afield.studies.benchmarking import accept_objects, run_benchmark

log = logging.getLogger(__name__)


def bench(
    dataset: Any = "rotated_digits",
    methods: Any = (),
    *,
    store: str | Path | Store = "runs",
    pool: Pool | None = None,
    tensorboard: bool = False,
    **options: Any,
) -> list[Record]:
    """Compare methods on unseen domains; return the records, which the store keeps.

    It does what ``afield bench`` does: the store gets the records, the plan for `afield status` and
    the report. Runs that the store already has are not repeated. A run that fails is logged and
    left out of the result.

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
    """
    if pool is None and options.get("on", "local") == "local":
        options.setdefault("workers", 1)
    store = open_store(store)
    words = {"dataset": dataset, "methods": methods, **options}
    benchmark = make_benchmark(**accept_objects(words, store.root / "data"))
    outcomes = run_benchmark(
        benchmark,
        report=partial(write_report, rules=benchmark.rules),
        store=store,
        pool=pool,
        tensorboard=tensorboard,
    )
    for outcome in outcomes:
        if isinstance(outcome, Failure):
            log.error("%s failed: %s", outcome.run.key, outcome.error)
    return [outcome for outcome in outcomes if isinstance(outcome, Record)]
