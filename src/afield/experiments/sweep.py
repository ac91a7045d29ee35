"""Many runs: do those that are missing, let no failure stop the others, lose nothing.

Any number of sweeps may work on one store at the same time: a run is done by the first to claim it.
"""

import logging
import multiprocessing
import os
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from afield import registry
from afield.compute import default_device, end_with_parent, usable_cores
from afield.errors import AfieldError, SpecError
from afield.experiments.merge_runner import execute_merge
from afield.experiments.record import Failure, Record, Run
from afield.experiments.runner import execute, versions
from afield.experiments.store import BusyError, Store

__all__ = ["Local", "Pool", "complete", "default_workers", "sort_outcomes"]

log = logging.getLogger(__name__)

Item = TypeVar("Item")
Result = TypeVar("Result")


class Pool(Protocol):
    """Something that maps a function over items, in any order, wherever it likes."""

    def map(
        self,
        function: Callable[[Item], Result],
        items: Iterable[Item],
        on_lost: Callable[[Item], Result],
    ) -> Iterator[Result]:
        """Yield results as they come; `lost` makes the result of an item whose worker died."""


@dataclass(frozen=True)
class Local:
    """Processes on this machine, one run in each at a time; with one worker, this process."""

    workers: int = 1

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise SpecError(f"workers={self.workers}: at least one is needed")

    def map(
        self,
        function: Callable[[Item], Result],
        items: Iterable[Item],
        on_lost: Callable[[Item], Result],
    ) -> Iterator[Result]:
        """Yield results as they come.

        Every worker is a pool of its own, so that a worker that is killed takes down exactly the
        run that it was at, and that run is known.
        """
        if self.workers == 1:
            yield from map(function, items)
            return
        waiting = deque(items)
        idle = _workers(min(self.workers, len(waiting)))
        at_work: dict[Future[Result], tuple[ProcessPoolExecutor, Item]] = {}
        try:
            while waiting or at_work:
                while idle and waiting:
                    worker, item = idle.pop(), waiting.popleft()
                    at_work[worker.submit(function, item)] = worker, item
                for future in wait(at_work, return_when=FIRST_COMPLETED).done:
                    worker, item = at_work.pop(future)
                    died = isinstance(future.exception(), BrokenProcessPool)
                    idle.append(_worker() if died else worker)
                    yield on_lost(item) if died else future.result()
        finally:
            for worker, _ in at_work.values():
                _end(worker)
            for worker in idle:
                worker.shutdown(wait=False)


def default_workers(threads: int) -> int:
    """As many as the cores that this process may use can carry; one where there is a GPU."""
    if default_device() != "cpu":
        return 1
    return max(1, usable_cores() // threads)


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


def _workers(count: int) -> list[ProcessPoolExecutor]:
    """Workers that have started."""
    started = [_worker() for _ in range(count)]
    try:
        wait([worker.submit(os.getpid) for worker in started])
        for worker in started:
            worker.submit(os.getpid).result()
    except BrokenProcessPool:
        raise SpecError(
            "worker processes cannot start; in a script, start from below "
            'if __name__ == "__main__":, or use workers=1'
        ) from None
    return started


def _end(worker: ProcessPoolExecutor) -> None:
    """Stop in the middle of a run: it can go on from its snapshot."""
    for process in list((worker._processes or {}).values()):
        process.kill()
    worker.shutdown(wait=False, cancel_futures=True)


def _worker() -> ProcessPoolExecutor:
    # Spawned, not forked: torch's threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(1, mp_context=context, initializer=end_with_parent)
