"""Merging the tensors of a model into files, in one process or in several."""

import logging
import multiprocessing
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch

from afield.compute import end_with_parent, usable_cores
from afield.merging.checks import TensorChange
from afield.merging.job import MergeJob, merge_pieces
from afield.merging.scopes import scope_of
from afield.progress import track

__all__ = ["Offsets", "default_workers", "write_tensors"]

# Models with fewer entries are merged before other processes have started.
MIN_ENTRIES_FOR_WORKERS = 30_000_000
# For each tensor of the result: its file, and the byte at which its entries start.
Offsets = Mapping[str, tuple[Path, int]]


def default_workers(job: MergeJob) -> int:
    """The number of cores, or 1 if starting processes takes longer than the merge."""
    sizes = [spec.size for spec in job.base.specs.values()]
    if job.device != "cpu" or sum(sizes) < MIN_ENTRIES_FOR_WORKERS:
        return 1
    return min(usable_cores(), len(sizes))


def write_tensors(
    open_job: Callable[[], MergeJob], job: MergeJob, offsets: Offsets, workers: int
) -> Iterator[TensorChange]:
    """Merge and write all tensors; yield how far the experts have moved in each.

    Every worker opens the files for itself, with `open_job`.
    """
    if workers == 1 or scope_of(job.merge) in ("entry", "model"):
        for name, (file, start) in track(offsets.items(), job.how, len(offsets)):
            yield _merge_tensor(job, name, file, start)
        return
    # Spawned, not forked: torch's threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, context, initializer=_start_worker, initargs=(open_job,))
    try:
        # Large tensors first, so that no process works alone at the end.
        names = sorted(offsets, key=lambda name: -job.base.specs[name].size)
        done = track(
            pool.map(_merge_in_worker, ((name, *offsets[name]) for name in names)),
            job.how,
            len(names),
        )
        changes = dict(zip(names, done, strict=True))
        yield from (changes[name] for name in offsets)
    finally:
        pool.shutdown(cancel_futures=True)


def _merge_tensor(job: MergeJob, name: str, path: Path, start: int) -> TensorChange:
    changes: list[TensorChange] = []
    with path.open("rb+") as file:
        file.seek(start)
        for piece in merge_pieces(job, name, changes.append):
            file.write(piece.cpu().contiguous().view(torch.uint8).numpy().data)
    return changes[0]


_worker_job: MergeJob | None = None


def _start_worker(open_job: Callable[[], MergeJob]) -> None:
    """Open the files in a worker process, which ends when its parent does."""
    global _worker_job  # noqa: PLW0603  a worker has one job and no other way to keep it
    end_with_parent()
    # The parent process has logged the warnings about the files.
    logging.getLogger("afield").setLevel(logging.CRITICAL)
    torch.set_num_threads(1)
    _worker_job = open_job()


def _merge_in_worker(task: tuple[str, Path, int]) -> TensorChange:
    if _worker_job is None:
        raise RuntimeError("this worker process was not started with its job")
    return _merge_tensor(_worker_job, *task)
