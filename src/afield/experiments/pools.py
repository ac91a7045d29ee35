"""Runs on a Ray cluster: one task a run; a task whose machine is lost is begun again elsewhere.

Ray is the scheduler, and an extra: ``pip install 'afield[ray]'``. Machines share the store (a
folder that all of them see, or an address), so a run that is begun again goes on from its snapshot.
Each finds the data by its own ``AFIELD_DATA``.
"""

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from afield.errors import SpecError

__all__ = ["Ray"]

log = logging.getLogger(__name__)

Item = TypeVar("Item")
Result = TypeVar("Result")

# A run with these came to no end of its own.
LOST_ERRORS = ("WorkerCrashedError", "NodeDiedError", "OutOfMemoryError", "ObjectLostError")
# How often to ask for the end of what is under way, a second apart.
CANCEL_ATTEMPTS = 10
# A cluster that is started for a sweep sends nothing to anybody.
RAY_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}


@dataclass(frozen=True)
class Ray:
    """A cluster: that of the address, or the one that runs here, or one of this machine alone.

    Every run takes so many `cpus` and `gpus`, which may be fractions, and is begun again so often
    when its machine is lost or its process is killed.
    """

    address: str = ""
    cpus: float = 1.0
    gpus: float = 0.0
    retries: int = 3

    def __post_init__(self) -> None:
        if min(self.cpus, self.gpus) < 0 or not self.cpus + self.gpus:
            raise SpecError(f"cpus={self.cpus:g}, gpus={self.gpus:g}: a run needs some of either")
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
        """Yield results as they come; what is under way when the caller stops is stopped too."""
        waiting = list(items)
        if not waiting:
            return
        ray = self._connected()
        resources = {"num_cpus": self.cpus, "num_gpus": self.gpus}
        task = ray.remote(max_retries=self.retries, **resources)(_done)
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

    def _connected(self) -> Any:
        """Ray, with a cluster; it stays connected until the process ends."""
        try:
            import ray
        except ImportError:
            raise SpecError("Ray is not installed; do so with: pip install 'afield[ray]'") from None
        if not ray.is_initialized():
            for name, value in RAY_ENVIRONMENT.items():
                os.environ.setdefault(name, value)
            try:
                ray.init(
                    self.address or None,
                    include_dashboard=None if self.address else False,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                )
            except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
                where = self.address or "this machine"
                raise SpecError(f"{where}: no Ray cluster there ({error})") from None
        self._check_room(ray.nodes())
        return ray

    def _check_room(self, nodes: list[dict[str, Any]]) -> None:
        """A word where no machine is large enough: one may come yet."""
        alive = [node["Resources"] for node in nodes if node["Alive"]]
        if not any(
            each.get("CPU", 0) >= self.cpus and each.get("GPU", 0) >= self.gpus for each in alive
        ):
            log.warning(
                "no machine of the cluster has %g CPUs and %g GPUs for a run: waiting for one",
                self.cpus,
                self.gpus,
            )


def _stop(ray: Any, references: list[Any]) -> None:
    """Stop what is under way, and what waits; Ray may miss a task that is about to begin."""
    for _ in range(CANCEL_ATTEMPTS):
        if not references:
            return
        # The last first: none that waits may take the place of one that is stopped.
        for reference in reversed(references):
            ray.cancel(reference, force=True)
        references = ray.wait(references, num_returns=len(references), timeout=1.0)[1]


def _done(work: Callable[[Item], Result], item: Item, *, gpu: bool) -> Result:
    if not gpu:
        # One that it did not ask for is another's.
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    return work(item)
