"""Sweeps: do the missing runs of many; a failed run does not stop the others.

Any number of sweeps may use one store at the same time. The first to claim a run does it.
"""

import logging
import traceback
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from afield import own_code, registry
from afield.data.listing import current_listing, join_listing
from afield.errors import AfieldError
from afield.own_code import Code
from afield.runs.pool import Pool, default_pool
from afield.runs.record import Failure, Record
from afield.runs.run import Run
from afield.runs.run_setup import code_digest
from afield.runs.runner import execute
from afield.runs.store import BusyError, Store

log = logging.getLogger(__name__)


def complete(
    runs: Sequence[Run], store: Store, *, pool: Pool | None = None, **options: Any
) -> Iterator[Record | Failure]:
    """Yield the record of every run, and do the missing runs; failures are stored and yielded.

    A run comes after the runs from whose weights it starts. Apart from that, all methods finish
    their first trial before any starts its second. `options` go to `execute`.
    """
    pool = pool or default_pool()
    store.prepare()
    stored = store.known(runs)
    yield from _warn_of_changes(record for record in stored if record is not None)
    missing = [run for run, record in zip(runs, stored, strict=True) if record is None]
    missing.sort(key=lambda run: (run.trial, run.draw))
    attempt = partial(
        _attempt,
        store=store,
        options=options,
        codes=own_code.registered(),
        listing=current_listing(),
    )
    lost = partial(_lost, store=store)
    for stage in sorted({run.order for run in missing}):
        elsewhere = []
        ready = [run for run in missing if run.order == stage]
        for outcome in pool.map(partial(attempt, wait=False), ready, lost):
            if isinstance(outcome, Run):
                elsewhere.append(outcome)
            else:
                yield outcome
        for outcome in pool.map(partial(attempt, wait=True), elsewhere, lost):
            if not isinstance(outcome, Run):
                yield outcome


def _warn_of_changes(records: Iterable[Record]) -> Iterator[Record]:
    """Pass on stored records; log the methods whose code has changed since."""
    stale = set()
    for record in records:
        if registry.code_differs(record.versions.get("code", ""), code_digest(record.run)):
            stale.add(record.run.method)
        yield record
    for method in sorted(stale):
        log.warning("%s: its code has changed since these records; use another --store", method)


def sort_outcomes(
    runs: Sequence[Run], outcomes: Iterable[Record | Failure]
) -> list[Record | Failure]:
    """Outcomes in the order of `runs`."""
    position = {run.key: i for i, run in enumerate(runs)}
    return sorted(outcomes, key=lambda outcome: position[outcome.run.key])


def _attempt(
    run: Run,
    *,
    store: Store,
    options: dict[str, Any],
    codes: Sequence[Code],
    listing: str,
    wait: bool,
) -> Record | Failure | Run:
    """The record, the failure, or the run itself if another process is doing it."""
    try:
        own_code.restore(codes)
        join_listing(listing)
        return execute(run, store, wait=wait, **options)
    except BusyError:
        return run
    except Exception as error:  # noqa: BLE001  a failing run, whatever the reason, stops no other
        expected = isinstance(error, AfieldError)
        message = str(error) if expected else f"{type(error).__name__}: {error}"
        return _keep(Failure(run, message, traceback.format_exc()), store)


def _lost(run: Run, *, store: Store) -> Failure:
    return _keep(Failure(run, "the process was killed (out of memory?)", trace=""), store)


def _keep(failure: Failure, store: Store) -> Failure:
    try:
        store.put_failure(failure)
    except (OSError, AfieldError) as error:
        log.warning("%s: the failure could not be written (%s)", failure.run.key, error)
    return failure
