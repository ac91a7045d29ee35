"""Merging models that are stored in files, into a file, with memory that does not grow with them.

The result has the layout of the base: a safetensors file, or a folder with the base's config and
shards. Its metadata hold, under ``afield``, a JSON object that says how it was made: the merge, its
settings and the scale, the first digits of the inputs' SHA-256, and how many tensors were merged,
averaged and kept, and why. The same merge gives the same bytes.

Readable are safetensors files, folders in the layout of Hugging Face (config.json and safetensors,
possibly in shards with an index), and checkpoints written by torch.save. Files are mapped into
memory. A mapping is renewed every now and then, so that pages that were read do not stay in memory.
Only checkpoints in the format that torch had before 1.6 cannot be mapped; they are loaded whole.
"""

import json
import logging
import multiprocessing
import shutil
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from afield import registry
from afield.compute import end_with_parent, preserve_torch_state, usable_cores
from afield.errors import DataError, MergeError, SpecError
from afield.files import atomic_write, check_output, file_digest, format_bytes, read_text
from afield.merging.checks import TensorChange
from afield.merging.job import (
    MergeJob,
    StateDictSource,
    log_merge_warnings,
    merge_pieces,
    plan_merge,
)
from afield.merging.scopes import TensorSpec, needs_validation, scope_of
from afield.progress import track
from afield.tensors import check_state_dict, read_weights

SUFFIX = ".safetensors"
INDEX_SUFFIX = f"{SUFFIX}.index.json"
# The entry of a safetensors header that is not a tensor.
METADATA_KEY = "__metadata__"
# Bytes to read before a mapping is renewed.
REMAP_BYTES = 32 << 20
# Keys under which some programs store the state dict in a checkpoint.
STATE_DICT_KEYS = ("state_dict", "model")
ReadEntries = Callable[[str, int, int | None], Tensor]
DTYPE_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class TensorFiles:
    """The tensors of a file or folder, as a `TensorSource`."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser()
        self.label = str(path)
        self.is_folder = self.path.is_dir()
        paths, index = _find_shards(self.path) if self.is_folder else ([self.path], None)
        files = {path: _TensorFile(path) for path in paths}
        self.shards = {
            path: [name for name in file.specs if index is None or index.get(name) == path.name]
            for path, file in files.items()
        }
        self.metadata = files[paths[0]].metadata
        self._files = {name: files[path] for path, names in self.shards.items() for name in names}
        self.specs = {name: file.specs[name] for name, file in self._files.items()}
        lost = next((name for name in index or () if name not in self.specs), None)
        if lost is not None:
            raise DataError(f"{self.path}: {lost} is in the index, but not in its file")

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Tensor:
        """Entries `start` to `stop` of a tensor, flattened; a view that must not be modified."""
        return self._files[name].read(name, start, stop)


class _TensorFile:
    """One file, mapped into memory if its format allows that."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata: dict[str, str] = {}
        self.specs: dict[str, TensorSpec] = {}
        self._mapped, self._bytes_read = True, 0
        if not path.is_file():
            what = "not a regular file" if path.exists() else "no such file or folder"
            raise DataError(f"{path}: {what}; give a file or folder of weights")
        self._read = self._open()

    def read(self, name: str, start: int, stop: int | None) -> Tensor:
        """Entries of a tensor; entries read long ago are released from memory."""
        if self._mapped and self._bytes_read > REMAP_BYTES:
            self._read, self._bytes_read = self._open(), 0
        entries = self._read(name, start, stop)
        self._bytes_read += entries.nbytes
        return entries

    def _open(self) -> ReadEntries:
        if self.path.suffix == SUFFIX:
            return self._open_safetensors()
        if not zipfile.is_zipfile(self.path):
            # Safetensors files in a download cache have no suffix.
            with suppress(DataError):
                return self._open_safetensors()
            # The format before torch 1.6, which cannot be mapped. `read_weights` also explains
            # what is wrong with any other file.
            self._mapped = False
            return self._open_state_dict(read_weights(str(self.path)))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                state = torch.load(self.path, map_location="cpu", weights_only=True, mmap=True)
        except Exception:  # noqa: BLE001  a broken file makes torch raise nearly anything
            raise DataError(
                f"{self.path}: not read, because it is broken or needs code to be run; give "
                "safetensors, or a state dict written by torch.save"
            ) from None
        return self._open_state_dict(state)

    def _open_safetensors(self) -> ReadEntries:
        try:
            handle = safe_open(self.path, "pt")
            if not self.specs:
                names, self.metadata = handle.keys(), handle.metadata() or {}
                self.specs = {name: _spec(handle.get_tensor(name)) for name in names}
        except (OSError, SafetensorError) as error:
            raise DataError(
                f"{self.path}: not readable safetensors ({error}); save or download it again"
            ) from None

        def read(name: str, start: int, stop: int | None) -> Tensor:
            entries: Tensor = handle.get_tensor(name).view(-1)
            return entries[start:stop]

        return read

    def _open_state_dict(self, state: Any) -> ReadEntries:
        for key in STATE_DICT_KEYS:
            if isinstance(state, Mapping) and isinstance(state.get(key), Mapping):
                state = state[key]
        check_state_dict(state, str(self.path))
        if METADATA_KEY in state:
            raise DataError(f"{self.path}: a tensor is called {METADATA_KEY}; rename it")
        source = StateDictSource(state, str(self.path))
        self.specs = source.specs
        return source.read


def check_links(folder: Path) -> None:
    """Raise an error if a link in a folder leads out of it.

    Only the download cache of the Hugging Face hub has such links: from ``snapshots/<revision>`` to
    ``blobs`` beside it.
    """
    cache = folder.resolve().parents[1:2]
    is_snapshot = folder.resolve().parent.name == "snapshots" and (cache[0] / "blobs").is_dir()
    root = cache[0] if is_snapshot else folder.resolve()
    for file in folder.iterdir():
        if file.is_symlink() and not file.resolve().is_relative_to(root):
            raise DataError(
                f"{file}: a link that leads out of the folder; put the file itself there"
            )


def _spec(tensor: Tensor) -> TensorSpec:
    return TensorSpec(tensor.dtype, tuple(tensor.shape))


def _find_shards(folder: Path) -> tuple[list[Path], dict[str, str] | None]:
    """The safetensors files of a folder, and from its index, if any, the file of each tensor."""
    check_links(folder)
    indices = list(folder.glob(f"*{INDEX_SUFFIX}"))
    if len(indices) == 1:
        index = _read_index(indices[0])
        return [folder / name for name in sorted(set(index.values()))], index
    files = list(folder.glob(f"*{SUFFIX}"))
    if folder / "model.safetensors" in files:
        return [folder / "model.safetensors"], None
    if len(files) != 1 or indices:
        raise DataError(
            f"{folder}: {len(files)} safetensors files and {len(indices)} indices in it; give a "
            "folder with one of either, or a file"
        )
    return files, None


def _read_index(path: Path) -> dict[str, str]:
    try:
        index = json.loads(read_text(path))["weight_map"]
        valid = bool(index) and all(map(_is_file_name, index.values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        valid = False
    if not valid:
        raise DataError(f"{path}: not an index of safetensors (weight_map: tensor to file)")
    return dict(index)


def _is_file_name(file: object) -> bool:
    """Whether an index entry names a safetensors file in its own folder.

    Any other path would be read from, and written to, another folder or a config file.
    """
    if not isinstance(file, str):
        return False
    return Path(file).name == file and Path(file).suffix == SUFFIX


def write_header(
    path: Path, specs: Mapping[str, TensorSpec], metadata: Mapping[str, str]
) -> dict[str, int]:
    """Start a safetensors file with these tensors; return the byte at which each one begins.

    The same tensors and metadata give the same bytes. As in files of the safetensors library, wide
    types come first, so that every tensor is aligned to its type.
    """
    header: dict[str, Any] = {METADATA_KEY: dict(sorted(metadata.items()))}
    starts, end = {}, 0
    for name in sorted(specs, key=lambda name: (-specs[name].dtype.itemsize, name)):
        spec = specs[name]
        if spec.dtype not in DTYPE_NAMES:
            raise DataError(f"{name}: safetensors has no type for {spec.dtype}")
        starts[name], end = end, end + spec.size * spec.dtype.itemsize
        header[name] = {
            "dtype": DTYPE_NAMES[spec.dtype],
            "shape": list(spec.shape),
            "data_offsets": [starts[name], end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    # A file that has its entries already keeps them, and gets another header of the same length.
    with path.open("rb+" if path.exists() else "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    return {name: 8 + len(text) + start for name, start in starts.items()}


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
            atomic_write(out, durable=True, folder=sources[0].is_folder) as temporary,
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
        if not base_is_folder:
            check_output(out, overwrite=overwrite)
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
