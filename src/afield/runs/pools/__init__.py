"""Where runs are done: in processes of this machine, or on a Ray cluster."""

from afield.errors import SpecError, UnknownNameError
from afield.registry import hint
from afield.runs.pools.local import Local, Pool, local_pool
from afield.runs.pools.ray import Ray

__all__ = ["Local", "Pool", "Ray", "local_pool", "make_pool"]


def make_pool(
    on: str,
    *,
    threads: int = 1,
    workers: int | None = None,
    cpus: float | None = None,
    gpus: float = 0.0,
    retries: int = 3,
    device: str | None = None,
) -> Pool:
    """The pool that `on` names: ``local``, ``ray`` or ``ray://HOST:PORT``."""
    kind, _, address = on.partition("://")
    if kind == "local" and not address:
        if gpus or cpus is not None:
            raise SpecError("--cpus and --gpus need --on ray; use --workers and --threads")
        return local_pool(threads, workers, device)
    if kind != "ray":
        known = ["local", "ray", "ray://HOST:PORT"]
        raise UnknownNameError(f"cannot run on {on!r}; {hint(on, known)}")
    if workers is not None:
        raise SpecError("--workers is for processes of this machine; on Ray use --cpus")
    cpus = threads if cpus is None else cpus
    return Ray(on if address else "", cpus=cpus, gpus=gpus, retries=retries)
