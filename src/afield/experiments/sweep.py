"""Many runs: do those that are missing, let no failure stop the others, lose nothing.

Any number of sweeps may work on one store at the same time: a run is done by the first to claim it.
"""

import logging
import traceback
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from afield import registry
from afield.errors import AfieldError
from afield.experiments.merge_runner import execute_merge
from afield.experiments.pools import Local, Pool
from afield.experiments.record import Failure, Record, Run
from afield.experiments.runner import execute, versions
from afield.experiments.store import BusyError, Store

__all__ = [
    "complete",
    "sort_outcomes",
]


log = logging.getLogger(__name__)


def complete(
    runs: Sequence[Run], store: Store, *, pool: Pool | None = None, **options: Any
) -> Iterator[Record | Failure]:
    """Yield the record of every run, doing those that are missing; failures are kept and yielded.

    What starts from other runs' weights comes after them; apart from that, all methods come to
    their first trial before any comes to its second. `options` go to `execute`.
    """
    pool = pool or Local()
    store.prepare()
    found = store.known(runs)
    yield from _known(record for record in found if record is not None)
    missing = [run for run, record in zip(runs, found, strict=True) if record is None]
    missing.sort(key=lambda run: (run.trial, run.draw))
    attempt = partial(_attempt, store=store, options=options)
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


def _known(records: Iterable[Record]) -> Iterator[Record]:
    """Records of the store, with a note on methods whose code has changed since."""
    stale = set()
    for record in records:
        if registry.code_differs(record.versions.get("code", ""), versions(record.run)["code"]):
            stale.add(record.run.method)
        yield record
    for method in sorted(stale):
        log.warning("%s: its code has changed since these records; use another --store", method)


def sort_outcomes(
    runs: Sequence[Run], outcomes: Iterable[Record | Failure]
) -> list[Record | Failure]:
    """Outcomes in the order in which their runs were asked for, not in that of their end."""
    place = {run.key: i for i, run in enumerate(runs)}
    return sorted(outcomes, key=lambda outcome: place[outcome.run.key])


def _attempt(
    run: Run, *, store: Store, options: dict[str, Any], wait: bool
) -> Record | Failure | Run:
    """The record, the failure, or the run itself if another process is at it."""
    try:
        return (execute_merge if run.experts else execute)(run, store, wait=wait, **options)
    except BusyError:
        return run
    except Exception as error:  # noqa: BLE001  a failing run, whatever the reason, stops no other
        own = isinstance(error, AfieldError)
        told = str(error) if own else f"{type(error).__name__}: {error}"
        return _kept(Failure(run, told, traceback.format_exc()), store)


def _lost(run: Run, *, store: Store) -> Failure:
    return _kept(Failure(run, "the process was killed (out of memory?)", trace=""), store)


def _kept(failure: Failure, store: Store) -> Failure:
    try:
        store.put_failure(failure)
    except (OSError, AfieldError) as error:
        log.warning("%s: the failure could not be written (%s)", failure.run.key, error)
    return failure
