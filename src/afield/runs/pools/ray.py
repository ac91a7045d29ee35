"""Runs on a Ray cluster.

Every run is one task; a task whose machine is lost is started again elsewhere. Ray is an extra:
``pip install 'afield[ray]'``. All machines share the store, a folder that they all see or an
address, so a run that is started again continues from its snapshot. Each machine finds the data
through its own ``AFIELD_DATA``.
"""

import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from afield.compute import keep_freed_memory
from afield.errors import SpecError
from afield.runs.pool import Item, Result

__all__ = ["Ray"]

log = logging.getLogger(__name__)
# Ray's errors for a task whose process or machine was lost.
LOST_ERRORS = ("WorkerCrashedError", "NodeDiedError", "OutOfMemoryError", "ObjectLostError")
# How many times to cancel running tasks, a second apart.
CANCEL_ATTEMPTS = 10
# A cluster that is started for a sweep sends no usage statistics.
RAY_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
# Time for the first connection to a cluster, and for Ray to answer.
CONNECT_SECONDS, PROBE_SECONDS = 5, 20
CONNECT_SCRIPT = "import sys, ray; ray.init(sys.argv[1], log_to_driver=False, logging_level=40)"


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

    @classmethod
    def suited(
        cls,
        *,
        threads: int,
        workers: int | None,
        cpus: float | None,
        gpus: float,
        retries: int,
        **_: Any,
    ) -> dict[str, Any]:
        """By default as many CPUs per run as it has threads."""
        if workers is not None:
            raise SpecError("--workers is for processes of this machine; on Ray use --cpus")
        cpus = threads if cpus is None else cpus
        return {"cpus": cpus, "gpus": gpus, "retries": retries}

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
    keep_freed_memory()
    return work(item)
