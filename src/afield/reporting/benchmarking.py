"""`afield.bench`: a benchmark from the question to the report, in Python."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from afield.experiments.benchmark import make_benchmark
from afield.experiments.benchmarking import run_benchmark
from afield.experiments.pools import Pool
from afield.experiments.record import Failure, Record
from afield.experiments.store import Store
from afield.reporting.page import write_report

__all__ = ["bench"]

log = logging.getLogger(__name__)


def bench(
    dataset: str | Path | Sequence[str | Path] = "rotated_digits",
    methods: str | Sequence[str] = (),
    *,
    store: str | Path | Store = "runs",
    pool: Pool | None = None,
    device: str | None = None,
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
        Names or paths of datasets; names of methods, by default a short list.
    store
        The folder of the records, or an address such as ``s3://bucket/runs``.
    pool
        Where to do the runs, such as ``afield.Ray()``; by default one process, or `workers`.
    device
        As in `execute`.
    tensorboard
        Whether to write curves for TensorBoard into the store.
    options
        Options of ``afield bench`` and settings of the runs, as in `make_benchmark`: trials, draws,
        rules, hold_out, merges, average, workers, threads, steps and so on.

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
    benchmark = make_benchmark(dataset, methods, **options)
    outcomes = run_benchmark(
        benchmark,
        report=write_report,
        store=store,
        pool=pool,
        device=device,
        tensorboard=tensorboard,
    )
    for outcome in outcomes:
        if isinstance(outcome, Failure):
            log.error("%s failed: %s", outcome.run.key, outcome.error)
    return [outcome for outcome in outcomes if isinstance(outcome, Record)]
