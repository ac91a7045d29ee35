"""Merging models that are stored in files, into a file, with memory that does not grow with them.

The result has the layout of the base: a safetensors file, or a folder with the base's config and
shards. Its metadata hold, under ``afield``, a JSON object that says how it was made: the merge, its
settings and the scale, the first digits of the inputs' SHA-256, and how many tensors were merged,
averaged and kept, and why. The same merge gives the same bytes.
"""

import json
import logging
import multiprocessing
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from afield import registry
from afield.compute import end_with_parent, preserve_torch_state, usable_cores
from afield.errors import DataError, MergeError, SpecError
from afield.files import atomic_write, file_digest, format_bytes
from afield.merging.checks import TensorChange
from afield.merging.job import MergeJob, log_merge_warnings, merge_pieces, plan_merge
from afield.merging.scopes import needs_validation, scope_of
from afield.merging.tensor_files import TensorFiles, write_header
from afield.progress import track

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


# Files beside a base's weights that are not copied: weights in other formats, and its description.
SKIPPED_SUFFIXES = {
    ".safetensors",
    ".bin",
    ".pt",
    ".pth",
    ".ckpt",
    ".h5",
    ".msgpack",
    ".onnx",
    ".gguf",
}
DESCRIPTION_FILES = ("README.md", "model.json")
# Hexadecimal digits of a checksum in the metadata.
DIGEST_DIGITS = 16


def merge_files(
    how: str,
    base: str | Path,
    experts: Sequence[str | Path],
    out: str | Path,
    *,
    scale: float = 1.0,
    statistics: Sequence[str | Path] = (),
    overwrite: bool = False,
    workers: int | None = None,
    device: str = "cpu",
    **params: Any,
) -> Path:
    """Merge models in files, tensor by tensor, and return the path of the result.

    Parameters
    ----------
    how
        Name of the merge; see ``afield list merges``.
    base
        A safetensors file, a folder in the layout of Hugging Face, or a torch checkpoint.
    experts
        The models that were fine-tuned from the base, in the same formats.
    out
        The file to write (.safetensors), or a folder if the base is one.
    scale
        How far to move from the base along the merged delta.
    statistics
        For merges that need statistics of data (`fisher`, `regmean`): one file for each expert.
    overwrite
        Whether an existing file may be replaced.
    workers
        Number of processes, used by merges of matrices or of whole tensors; the result does not
        depend on it. By default the number of cores, or 1 if the model is small.
    device
        Where to compute, e.g. cuda; the last digits of a result depend on it.
    params
        Settings of the merge.
    """
    request = FileMerge(
        how,
        Path(base),
        tuple(map(Path, experts)),
        scale,
        tuple(map(Path, statistics)),
        params,
        device,
    )
    request.write(Path(out), overwrite=overwrite, workers=workers)
    return Path(out).expanduser()


@dataclass(frozen=True)
class FileMerge:
    """Which files to merge, and how."""

    how: str
    base: Path
    experts: tuple[Path, ...]
    scale: float = 1.0
    statistics: tuple[Path, ...] = ()
    params: Mapping[str, Any] = field(default_factory=dict)
    device: str = "cpu"

    def open_job(self) -> MergeJob:
        """Open the files and decide what happens to each tensor."""
        return self._open()[0]

    def preview(self, out: Path, *, overwrite: bool = False) -> MergeJob:
        """Return the job that `write` would carry out, or raise its errors; write nothing."""
        return self._open_checked(out.expanduser(), overwrite=overwrite)[0]

    def write(self, out: Path, *, overwrite: bool = False, workers: int | None = None) -> MergeJob:
        """Merge into a file or folder, which appears only once it is complete."""
        out = out.expanduser()
        job, sources = self._open_checked(out, overwrite=overwrite)
        _check_free_space(job, out)
        workers = workers or default_workers(job)
        # More than one thread is not faster here, and makes the last digits depend on the machine.
        with (
            preserve_torch_state(threads=1, cuda=False),
            ThreadPoolExecutor(1) as beside,
            atomic_write(out, durable=True) as temporary,
        ):
            # Checksums are as long as the work; they are computed beside it, and hashing leaves
            # the interpreter to others. Headers get them at the end: their length is known.
            digests = beside.submit(_digests, sources)
            offsets = _create_files(sources[0], temporary, self._metadata(job, sources))
            changes = list(write_tensors(self.open_job, job, offsets, workers))
            _write_headers(sources[0], temporary, self._metadata(job, sources, digests.result()))
        log_merge_warnings(job, changes)
        return job

    def _open_checked(self, out: Path, *, overwrite: bool) -> tuple[MergeJob, list[TensorFiles]]:
        self._check_out(out, overwrite=overwrite)
        job, sources = self._open()
        _check_not_an_input(out, [shard for source in sources for shard in source.shards])
        return job, sources

    def _open(self) -> tuple[MergeJob, list[TensorFiles]]:
        if needs_validation(registry.find("merges", self.how)):
            raise MergeError(
                f"{self.how} chooses experts by their validation scores, which files do not have; "
                f"use average, or `afield bench --merges {self.how}`"
            )
        _check_device(self.device)
        sources = [TensorFiles(path) for path in (self.base, *self.experts, *self.statistics)]
        base, *others = sources
        experts, statistics = others[: len(self.experts)], others[len(self.experts) :]
        job = plan_merge(
            self.how,
            base,
            experts,
            scale=self.scale,
            statistics=statistics,
            params=self.params,
            device=self.device,
        )
        return job, sources

    def _check_out(self, out: Path, *, overwrite: bool) -> None:
        """Raise if something would be lost, or if the layout differs from the base's."""
        base_is_folder = self.base.expanduser().is_dir()
        _check_not_an_input(out, (self.base, *self.experts, *self.statistics))
        if base_is_folder and out.exists():
            raise MergeError(f"{out}: exists already; give a new folder, or remove it yourself")
        if out.is_dir():
            raise MergeError(f"{out}: is a folder, but the base is a file; give a file to write")
        if out.exists() and not overwrite:
            raise MergeError(f"{out}: exists already; give another name, or --force to replace it")
        if not base_is_folder and out.suffix != ".safetensors":
            raise MergeError(
                f"{out}: the result is a safetensors file; name it {out.stem}.safetensors"
            )

    def _metadata(
        self,
        job: MergeJob,
        sources: Sequence[TensorFiles],
        digests: Mapping[Path, str] | None = None,
    ) -> dict[str, str]:
        """Metadata of the result; without digests, of the same length as with them."""
        provenance = json.dumps(self._provenance(job, sources, digests or {}))
        return {"format": "pt", **sources[0].metadata, "afield": provenance}

    def _provenance(
        self, job: MergeJob, sources: Sequence[TensorFiles], digests: Mapping[Path, str]
    ) -> dict[str, Any]:
        """How the result is made, for its metadata."""
        inputs = [
            {shard.name: digests.get(shard, "0" * DIGEST_DIGITS) for shard in source.shards}
            for source in sources
        ]
        last = 1 + len(self.experts)
        return {
            "merge": self.how,
            "params": job.params,
            "scale": self.scale,
            "tensors": job.counts,
            "base": inputs[0],
            "experts": inputs[1:last],
            **({"statistics": inputs[last:]} if self.statistics else {}),
            **({"device": self.device} if self.device != "cpu" else {}),
            "version": version("afield"),
        }


def _check_device(name: str) -> None:
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise SpecError(f"no device {name!r} ({reason}); use cpu, or leave it out") from None


def _digests(sources: Sequence[TensorFiles]) -> dict[Path, str]:
    return {shard: file_digest(shard) for source in sources for shard in source.shards}


def _check_not_an_input(out: Path, inputs: Iterable[Path]) -> None:
    for path in map(Path.expanduser, inputs):
        if out.exists() and path.exists() and out.samefile(path):
            raise MergeError(f"{out}: is one of the inputs; give another path for the result")


def _check_free_space(job: MergeJob, out: Path) -> None:
    needed = sum(spec.size * spec.dtype.itemsize for spec in job.base.specs.values())
    existing = next(folder for folder in out.absolute().parents if folder.exists())
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise DataError(
            f"{out}: the result needs {format_bytes(needed)}, but {format_bytes(free)} are free; "
            "free some space, or write elsewhere"
        )


def _create_files(base: TensorFiles, temporary: Path, metadata: Mapping[str, str]) -> Offsets:
    """Create all files of the result without entries; return where each tensor's entries belong."""
    if base.is_folder:
        temporary.mkdir()
        for file in base.path.iterdir():
            skipped = file.suffix in SKIPPED_SUFFIXES or file.name in DESCRIPTION_FILES
            if file.is_file() and not skipped:
                shutil.copyfile(file, temporary / file.name)
    return _write_headers(base, temporary, metadata)


def _write_headers(base: TensorFiles, temporary: Path, metadata: Mapping[str, str]) -> Offsets:
    """Write the headers of all files, without a change to the entries that follow them."""
    offsets = {}
    for shard, names in base.shards.items():
        file = temporary / shard.name if base.is_folder else temporary
        starts = write_header(file, {name: base.specs[name] for name in names}, metadata)
        offsets.update({name: (file, start) for name, start in starts.items()})
    return offsets
