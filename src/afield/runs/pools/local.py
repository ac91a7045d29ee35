"""Worker processes on this machine."""

import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

from afield import interruption
from afield.compute import (
    end_with_parent,
    find_device,
    keep_freed_memory,
    usable_cores,
    visible_gpus,
)
from afield.errors import SpecError
from afield.interruption import WORKER_SECONDS, handle_signals_in_worker
from afield.runs.pool import Item, Result

__all__ = ["Local"]


@dataclass(frozen=True)
class Local:
    """Worker processes on this machine; a single worker is the calling process itself.

    If GPUs are given, as values of CUDA_VISIBLE_DEVICES, every worker sees one of them.
    """

    workers: int = 1
    gpus: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise SpecError(f"workers={self.workers}: at least one is needed")

    @classmethod
    def suited(
        cls,
        *,
        threads: int,
        workers: int | None,
        cpus: float | None,
        gpus: float,
        device: str | None,
        **_: Any,
    ) -> dict[str, Any]:
        """By default one worker per GPU, or one per `threads` cores."""
        if gpus or cpus is not None:
            raise SpecError("--cpus and --gpus need --on ray; use --workers and --threads")
        where = find_device(device)
        if where.type == "cpu":
            return {"workers": workers or max(1, usable_cores() // threads)}
        names = visible_gpus() if where.index is None else ()
        return {"workers": workers or max(1, len(names)), "gpus": names}

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
        gpus = self._gpus(min(self.workers, len(waiting)))
        idle = list(gpus)
        at_work: dict[Future[Result], tuple[ProcessPoolExecutor, Item]] = {}
        try:
            while waiting or at_work:
                while idle and waiting:
                    worker, item = idle.pop(), waiting.popleft()
                    at_work[worker.submit(function, item)] = worker, item
                for future in wait(at_work, return_when=FIRST_COMPLETED).done:
                    worker, item = at_work.pop(future)
                    died = isinstance(future.exception(), BrokenProcessPool)
                    if died:
                        gpu = gpus[worker]
                        worker = _make_worker(gpu)
                        gpus[worker] = gpu
                    idle.append(worker)
                    yield on_lost(item) if died else future.result()
        finally:
            _leave(at_work)
            for worker in idle:
                worker.shutdown(wait=False)

    def _gpus(self, workers: int) -> dict[ProcessPoolExecutor, str]:
        """Start workers, and return the GPU of each."""
        names = self.gpus or ("",)
        chosen = [names[number % len(names)] for number in range(workers)]
        return dict(zip(_start_workers(chosen), chosen, strict=True))


def _start_workers(gpus: Sequence[str]) -> list[ProcessPoolExecutor]:
    """Start a worker for each of these GPUs, and wait until they run."""
    started = [_make_worker(gpu) for gpu in gpus]
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


def _leave(at_work: Mapping[Future[Any], tuple[ProcessPoolExecutor, Any]]) -> None:
    """End workers in the middle of runs, after a snapshot if a signal asked this process to stop.

    A worker whose next checkpoint does not come soon is killed; its run has the last snapshot.
    """
    if interruption.requested():
        for worker, _ in at_work.values():
            for process in list((worker._processes or {}).values()):
                process.terminate()
        wait(at_work, timeout=WORKER_SECONDS)
    for worker, _ in at_work.values():
        _end(worker)


def _end(worker: ProcessPoolExecutor) -> None:
    """Kill a worker in the middle of a run, which can continue from its snapshot."""
    for process in list((worker._processes or {}).values()):
        process.kill()
    worker.shutdown(wait=False, cancel_futures=True)


def _make_worker(gpu: str) -> ProcessPoolExecutor:
    # Spawned, not forked: torch's threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(1, mp_context=context, initializer=_begin, initargs=(gpu,))


def _begin(gpu: str) -> None:
    """Prepare a worker process; without a GPU of its own it sees those of its parent."""
    if gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    end_with_parent()
    handle_signals_in_worker()
    keep_freed_memory()
