"""Merging models that lie in files, into a file: memory does not grow with the model.

The result has the form of the base: a safetensors file, or a folder with the base's config and
shards. In its metadata, under ``afield``, is how it was made, as JSON: the merge, its settings and
the scale, the first digits of the inputs' SHA-256, and how many tensors were merged, averaged and
kept, and why. The same merge gives the same bytes.
"""

import json
import logging
import multiprocessing
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from afield import registry
from afield.compute import end_with_parent, preserve_torch_state
from afield.errors import DataError, MergeError
from afield.files import atomic_write, file_digest
from afield.merging.checks import TensorChange
from afield.merging.job import MergeJob, log_merge_warnings, merge_pieces, plan_merge
from afield.merging.scopes import scope_of
from afield.merging.tensor_files import TensorFiles, write_header
from afield.progress import track

__all__ = ["FileMerge", "merge_files"]

# Files beside a base's weights that are not copied: weights in other forms, and its description.
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


def merge_files(
    how: str,
    base: str | Path,
    experts: Sequence[str | Path],
    out: str | Path,
    *,
    scale: float = 1.0,
    statistics: Sequence[str | Path] = (),
    overwrite: bool = False,
    workers: int = 1,
    **params: Any,
) -> Path:
    """Merge models in files, tensor by tensor, and return where the result is.

    Parameters
    ----------
    how
        Name of the merge; see ``afield list merges``.
    base
        A safetensors file, a folder of Hugging Face's form, or a torch checkpoint.
    experts
        Likewise, of the models that were fine-tuned from the base.
    out
        File (.safetensors) to write; a folder if the base is one.
    scale
        How far to go from the base along the merged delta.
    statistics
        For fisher and regmean, one file an expert.
    overwrite
        Whether a file that is there already may be replaced.
    workers
        Processes, for merges of matrices or of whole tensors; the result is the same.
    params
        Settings of the merge.
    """
    asked = FileMerge(
        how, Path(base), tuple(map(Path, experts)), scale, tuple(map(Path, statistics)), params
    )
    asked.write(Path(out), overwrite=overwrite, workers=workers)
    return Path(out).expanduser()


@dataclass(frozen=True)
class FileMerge:
    """Which files are to be merged, and how."""

    how: str
    base: Path
    experts: tuple[Path, ...]
    scale: float = 1.0
    statistics: tuple[Path, ...] = ()
    params: Mapping[str, Any] = field(default_factory=dict)

    def open_job(self) -> MergeJob:
        """Open the files and decide what will happen to each tensor."""
        return self._opened()[0]

    def preview(self, out: Path, *, overwrite: bool = False) -> MergeJob:
        """What `write` would do, and its errors; nothing is written."""
        return self._checked(out.expanduser(), overwrite=overwrite)[0]

    def _checked(self, out: Path, *, overwrite: bool) -> tuple[MergeJob, list[TensorFiles]]:
        self._check_out(out, overwrite=overwrite)
        job, sources = self._opened()
        _check_no_input(out, [shard for source in sources for shard in source.shards])
        return job, sources

    def _opened(self) -> tuple[MergeJob, list[TensorFiles]]:
        registry.find("merges", self.how)
        sources = [TensorFiles(path) for path in (self.base, *self.experts, *self.statistics)]
        base, *others = sources
        experts, statistics = others[: len(self.experts)], others[len(self.experts) :]
        job = plan_merge(
            self.how, base, experts, scale=self.scale, statistics=statistics, params=self.params
        )
        return job, sources

    def _check_out(self, out: Path, *, overwrite: bool) -> None:
        """What is there already is not lost, and the form is that of the base."""
        folder = self.base.expanduser().is_dir()
        _check_no_input(out, (self.base, *self.experts, *self.statistics))
        if folder and out.exists():
            raise MergeError(f"{out}: is there already; give a new folder, or remove it yourself")
        if out.is_dir():
            raise MergeError(f"{out}: is a folder, but the base is a file; give a file to write")
        if out.exists() and not overwrite:
            raise MergeError(
                f"{out}: is there already; give another name, or --force to replace it"
            )
        if not folder and out.suffix != ".safetensors":
            raise MergeError(
                f"{out}: the result is a safetensors file; name it {out.stem}.safetensors"
            )

    def write(self, out: Path, *, overwrite: bool = False, workers: int = 1) -> MergeJob:
        """Merge into a file or folder, which is there at the end whole or not at all."""
        out = out.expanduser()
        job, sources = self._checked(out, overwrite=overwrite)
        _check_space(job, out)
        account = json.dumps(self._account(job, sources))
        metadata = {"format": "pt", **sources[0].metadata, "afield": account}
        # With more threads the last digits would depend on the machine; they are not faster here.
        with preserve_torch_state(threads=1, cuda=False), atomic_write(out, durable=True) as part:
            places = _prepared(sources[0], part, metadata)
            movements = list(_written(self, job, places, workers))
        log_merge_warnings(job, movements)
        return job

    def _account(self, job: MergeJob, sources: Sequence[TensorFiles]) -> dict[str, Any]:
        """How the result is made."""
        paths = [shard for source in sources for shard in source.shards]
        digests = {path: file_digest(path) for path in track(paths, "checksums", len(paths))}
        told = [{shard.name: digests[shard] for shard in source.shards} for source in sources]
        last = 1 + len(self.experts)
        return {
            "merge": self.how,
            "params": job.params,
            "scale": self.scale,
            "tensors": job.counts,
            "base": told[0],
            "experts": told[1:last],
            **({"statistics": told[last:]} if self.statistics else {}),
            "version": version("afield"),
        }


def _check_no_input(out: Path, inputs: Iterable[Path]) -> None:
    for path in map(Path.expanduser, inputs):
        if out.exists() and path.exists() and out.samefile(path):
            raise MergeError(f"{out}: is one of the inputs; give another place for the result")


def _check_space(job: MergeJob, out: Path) -> None:
    needed = sum(spec.size * spec.dtype.itemsize for spec in job.base.specs.values())
    there = next(folder for folder in out.absolute().parents if folder.exists())
    free = shutil.disk_usage(there).free
    if needed > free:
        raise DataError(
            f"{out}: {needed / 1e9:.1f} GB to write, but {free / 1e9:.1f} GB are free; "
            "make room, or write elsewhere"
        )


def _prepared(
    base: TensorFiles, part: Path, metadata: Mapping[str, str]
) -> dict[str, tuple[Path, int]]:
    """Make all files of the result, without numbers; returns where each tensor's belong."""
    if base.is_folder:
        part.mkdir()
        for file in base.path.iterdir():
            if (
                file.is_file()
                and file.suffix not in SKIPPED_SUFFIXES
                and file.name not in DESCRIPTION_FILES
            ):
                shutil.copyfile(file, part / file.name)
    places = {}
    for shard, names in base.shards.items():
        file = part / shard.name if base.is_folder else part
        found = write_header(file, {name: base.specs[name] for name in names}, metadata)
        places.update({name: (file, place) for name, place in found.items()})
    return places


def _written(
    asked: FileMerge, job: MergeJob, places: Mapping[str, tuple[Path, int]], workers: int
) -> Iterator[TensorChange]:
    """Merge and write all tensors; yields how far the experts have moved in each."""
    if workers == 1 or scope_of(job.merge) in ("entry", "model"):
        for name, (file, place) in track(places.items(), job.how, len(places)):
            yield _merge_tensor(job, name, file, place)
        return
    # Spawned, not forked: torch's threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, context, initializer=_begin, initargs=(asked,))
    try:
        tasks = ((name, file, place) for name, (file, place) in places.items())
        yield from track(pool.map(_work, tasks), job.how, len(places))
    finally:
        pool.shutdown(cancel_futures=True)


def _merge_tensor(job: MergeJob, name: str, file: Path, place: int) -> TensorChange:
    movements: list[TensorChange] = []
    with file.open("rb+") as opened:
        opened.seek(place)
        for piece in merge_pieces(job, name, movements.append):
            opened.write(piece.contiguous().view(torch.uint8).numpy().data)
    return movements[0]


_job: MergeJob | None = None


def _begin(asked: FileMerge) -> None:
    """Open the files in a worker, which ends when its parent does, however that ends."""
    global _job  # noqa: PLW0603  a worker has one job, and no other way to keep it
    end_with_parent()
    # The parent has told what is doubtful about the files.
    logging.getLogger("afield").setLevel(logging.CRITICAL)
    torch.set_num_threads(1)
    _job = asked.open_job()


def _work(task: tuple[str, Path, int]) -> TensorChange:
    if _job is None:
        raise RuntimeError("a worker that has not begun")
    return _merge_tensor(_job, *task)
