"""Where runs are done: in processes of this machine, or on a Ray cluster.

On Ray, every run is one task; a task whose machine is lost is started again elsewhere. Ray is an
extra: ``pip install 'afield[ray]'``. All machines share the store, a folder that they all see or an
address, so a run that is started again continues from its snapshot. Each machine finds the data
through its own ``AFIELD_DATA``.
"""

import logging
import multiprocessing
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from afield.compute import default_device, end_with_parent, usable_cores
from afield.errors import SpecError, UnknownNameError
from afield.registry import hint

__all__ = ["Local", "Pool", "Ray", "default_workers", "make_pool"]

log = logging.getLogger(__name__)
Item = TypeVar("Item")
Result = TypeVar("Result")
# Ray's errors for a task whose process or machine was lost.
LOST_ERRORS = ("WorkerCrashedError", "NodeDiedError", "OutOfMemoryError", "ObjectLostError")
# How many times to cancel running tasks, a second apart.
CANCEL_ATTEMPTS = 10
# A cluster that is started for a sweep sends no usage statistics.
RAY_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
# Time for the first connection to a cluster, and for Ray to answer.
CONNECT_SECONDS, PROBE_SECONDS = 5, 20
CONNECT_SCRIPT = "import sys, ray; ray.init(sys.argv[1], log_to_driver=False, logging_level=40)"


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


def make_pool(
    on: str,
    *,
    threads: int = 1,
    workers: int | None = None,
    cpus: float | None = None,
    gpus: float = 0.0,
    retries: int = 3,
) -> Pool:
    """The pool that `on` names: ``local``, ``ray`` or ``ray://HOST:PORT``."""
    kind, _, address = on.partition("://")
    if kind == "local" and not address:
        if gpus or cpus is not None:
            raise SpecError("--cpus and --gpus need --on ray; use --workers and --threads")
        return Local(workers or default_workers(threads))
    if kind != "ray":
        known = ["local", "ray", "ray://HOST:PORT"]
        raise UnknownNameError(f"cannot run on {on!r}; {hint(on, known)}")
    if workers is not None:
        raise SpecError("--workers is for processes of this machine; on Ray use --cpus")
    cpus = threads if cpus is None else cpus
    return Ray(on if address else "", cpus=cpus, gpus=gpus, retries=retries)


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
    return ProcessPoolExecutor(1, mp_context=context, initializer=end_with_parent)


@dataclass(frozen=True)
class Ray:
    """A Ray cluster.

    Parameters
    ----------
    address
        Address of the cluster; empty means the cluster that runs here, or else a new one on this
        machine.
    cpus, gpus
        Resources per run, which may be fractions.
    retries
        How many times a run is restarted if its machine is lost or its process is killed.
    """

    address: str = ""
    cpus: float = 1.0
    gpus: float = 0.0
    retries: int = 3

    def __post_init__(self) -> None:
        if min(self.cpus, self.gpus) < 0 or not self.cpus + self.gpus:
            raise SpecError(f"cpus={self.cpus:g}, gpus={self.gpus:g}: a run needs CPUs or GPUs")
        if self.gpus > 1 and self.gpus != int(self.gpus):
            raise SpecError(f"gpus={self.gpus:g}: give a part of one GPU, or whole ones")
        if self.retries < 0:
            raise SpecError(f"retries={self.retries}: must not be below 0")

    def map(
        self,
        function: Callable[[Item], Result],
        items: Iterable[Item],
        on_lost: Callable[[Item], Result],
    ) -> Iterator[Result]:
        """Yield results as they come; when the caller stops, running tasks are canceled."""
        waiting = list(items)
        if not waiting:
            return
        ray = self._connect()
        resources = {"num_cpus": self.cpus, "num_gpus": self.gpus}
        task = ray.remote(max_retries=self.retries, **resources)(_run_task)
        at_work = {task.remote(function, item, gpu=self.gpus > 0): item for item in waiting}
        try:
            while at_work:
                for reference in ray.wait(list(at_work))[0]:
                    item = at_work.pop(reference)
                    try:
                        result = ray.get(reference)
                    except tuple(getattr(ray.exceptions, name) for name in LOST_ERRORS):
                        result = on_lost(item)
                    yield result
        finally:
            _stop(ray, list(at_work))

    def _connect(self) -> Any:
        """Connect to the cluster, until this process ends, and return the module `ray`."""
        try:
            import ray
        except ImportError:
            raise SpecError("Ray is not installed; try: pip install 'afield[ray]'") from None
        if not ray.is_initialized():
            for name, value in RAY_ENVIRONMENT.items():
                os.environ.setdefault(name, value)
            address = self.address or os.environ.get("RAY_ADDRESS", "")
            _check_answers(address)
            try:
                ray.init(
                    self.address or None,
                    include_dashboard=None if address else False,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                )
            except Exception as error:  # noqa: BLE001  Ray raises bare exceptions on a time-out
                raise _no_cluster(address, str(error)) from None
        self._check_resources(ray.nodes())
        return ray

    def _check_resources(self, nodes: list[dict[str, Any]]) -> None:
        """Warn if no machine is large enough for a run; one may still join."""
        alive = [node["Resources"] for node in nodes if node["Alive"]]
        if not any(
            each.get("CPU", 0) >= self.cpus and each.get("GPU", 0) >= self.gpus for each in alive
        ):
            log.warning(
                "no machine of the cluster has %g CPUs and %g GPUs for a run; waiting for one",
                self.cpus,
                self.gpus,
            )


def _check_answers(address: str) -> None:
    """Raise an error if no Ray cluster answers at an address, within half a minute.

    Ray itself would retry for minutes and print each attempt, so another process tries it first.
    """
    host, _, port = address.rpartition("//")[2].rstrip("/").rpartition(":")
    if not host:  # "auto", "local", or no address: the cluster is on this machine
        return
    try:
        with socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS):
            pass
        subprocess.run(
            [sys.executable, "-c", CONNECT_SCRIPT, address],
            check=True,
            capture_output=True,
            timeout=PROBE_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise _no_cluster(address, f"no answer within {PROBE_SECONDS} seconds") from None
    except subprocess.CalledProcessError as error:
        lines = error.stderr.decode(errors="replace").split("\n")
        raise _no_cluster(address, next(filter(None, reversed(lines)), "no answer")) from None
    except (OSError, ValueError, OverflowError) as error:
        raise _no_cluster(address, str(error)) from None


def _no_cluster(address: str, reason: str) -> SpecError:
    return SpecError(
        f"{address or 'this machine'}: no Ray cluster could be reached ({reason[:200]}); check the "
        "address and RAY_ADDRESS, or run without --on"
    )


def _stop(ray: Any, references: list[Any]) -> None:
    """Cancel running and waiting tasks, repeatedly: Ray may miss one that is about to start."""
    for _ in range(CANCEL_ATTEMPTS):
        if not references:
            return
        # The last first, so that no waiting task takes the place of a canceled one.
        for reference in reversed(references):
            ray.cancel(reference, force=True)
        references = ray.wait(references, num_returns=len(references), timeout=1.0)[1]


def _run_task(work: Callable[[Item], Result], item: Item, *, gpu: bool) -> Result:
    if not gpu:
        # Hide GPUs that this task did not request; they belong to other tasks.
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    return work(item)
