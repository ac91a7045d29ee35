"""Worker processes on this machine, and what every pool does."""

import logging
import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Protocol, TypeVar

from afield.compute import default_device, end_with_parent, keep_freed_memory, usable_cores
from afield.errors import SpecError

__all__ = ["Item", "Local", "Pool", "Result", "default_workers"]

log = logging.getLogger(__name__)
Item = TypeVar("Item")
Result = TypeVar("Result")


class Pool(Protocol):
    """Maps a function over items, in any order and anywhere."""

    def map(
        self,
        function: Callable[[Item], Result],
        items: Iterable[Item],
        on_lost: Callable[[Item], Result],
    ) -> Iterator[Result]:
        """Yield results as they come; `on_lost` makes the result of an item whose worker died."""


@dataclass(frozen=True)
class Local:
    """Worker processes on this machine; a single worker is the calling process itself."""

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

        Every worker is a pool of its own, so a killed worker loses only its own run, and it is
        known which.
        """
        if self.workers == 1:
            yield from map(function, items)
            return
        waiting = deque(items)
        idle = _start_workers(min(self.workers, len(waiting)))
        at_work: dict[Future[Result], tuple[ProcessPoolExecutor, Item]] = {}
        try:
            while waiting or at_work:
                while idle and waiting:
                    worker, item = idle.pop(), waiting.popleft()
                    at_work[worker.submit(function, item)] = worker, item
                for future in wait(at_work, return_when=FIRST_COMPLETED).done:
                    worker, item = at_work.pop(future)
                    died = isinstance(future.exception(), BrokenProcessPool)
                    idle.append(_make_worker() if died else worker)
                    yield on_lost(item) if died else future.result()
        finally:
            for worker, _ in at_work.values():
                _end(worker)
            for worker in idle:
                worker.shutdown(wait=False)


def default_workers(threads: int) -> int:
    """One worker per `threads` cores that this process may use; one worker on a GPU."""
    if default_device() != "cpu":
        return 1
    return max(1, usable_cores() // threads)


def _start_workers(count: int) -> list[ProcessPoolExecutor]:
    """Start workers, and wait until they run."""
    started = [_make_worker() for _ in range(count)]
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
    """Kill a worker in the middle of a run, which can continue from its snapshot."""
    for process in list((worker._processes or {}).values()):
        process.kill()
    worker.shutdown(wait=False, cancel_futures=True)


def _make_worker() -> ProcessPoolExecutor:
    # Spawned, not forked: torch's threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(1, mp_context=context, initializer=_begin)


def _begin() -> None:
    """Prepare a worker process."""
    end_with_parent()
    keep_freed_memory()
