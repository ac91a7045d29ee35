"""Merging models that are stored in files, into a file, with memory that does not grow with them.

The result has the layout of the base: a safetensors file, or a folder with the base's config and
shards. Its metadata hold, under ``afield``, a JSON object that says how it was made: the merge, its
settings and the scale, the first digits of the inputs' SHA-256, and how many tensors were merged,
averaged and kept, and why. The same merge gives the same bytes. `afield.merging.tensor_files` says
which files are readable.
"""

import json
import logging
import multiprocessing
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from afield import registry
from afield.compute import end_with_parent, preserve_torch_state, usable_cores
from afield.errors import DataError, MergeError, SpecError
from afield.files import (
    atomic_write,
    check_output,
    escape_markdown,
    file_digest,
    format_bytes,
)
from afield.merging.adapters import AdaptedBase, Adapter, is_adapter
from afield.merging.checks import TensorChange
from afield.merging.job import (
    MergeJob,
    Space,
    delta_squares,
    log_merge_warnings,
    merge_pieces,
    plan_merge,
    weight_factors,
)
from afield.merging.scopes import (
    TensorSource,
    needs_statistics,
    needs_validation,
    scope_of,
)
from afield.merging.tensor_files import TensorFiles, write_header
from afield.progress import track
from afield.safetensor_files import INDEX_SUFFIX

# Models with fewer entries are merged before other processes have started.
MIN_ENTRIES_FOR_WORKERS = 30_000_000
# For each tensor of the result: its file, and the byte at which its entries start.
Offsets = Mapping[str, tuple[Path, int]]
Source = TensorFiles | AdaptedBase


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
class Override:
    """Tensors that are merged in another way: those whose name matches a pattern such as head.*."""

    tensors: str
    # The name of a merge; empty for the same one, "base" to leave the tensors as they are.
    how: str = ""
    scale: float | None = None
    params: Mapping[str, Any] = field(default_factory=dict)


LEAVE = "base"
EQUALIZE = ("", "norm")
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


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
    expert_weights: tuple[float, ...] = ()
    equalize: str = ""
    overrides: tuple[Override, ...] = ()
    dtype: str = ""
    shard_bytes: int = 0
    space: Space = "auto"
    # Factors of the deltas, once they are known; workers get them from the first process.
    factors: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.equalize not in EQUALIZE:
            raise SpecError(f"equalize={self.equalize}: give norm, or leave it out")
        if self.dtype not in ("", *DTYPES):
            raise SpecError(f"dtype={self.dtype}: give one of {', '.join(DTYPES)}")

    def open_job(self) -> MergeJob:
        """Open the files and decide what happens to each tensor."""
        return self._open()[0]

    def preview(self, out: Path, *, overwrite: bool = False) -> MergeJob:
        """Return the job that `write` would carry out, or raise its errors; write nothing."""
        return self._open_checked(out.expanduser(), overwrite=overwrite)[0]

    def write(self, out: Path, *, overwrite: bool = False, workers: int | None = None) -> MergeJob:
        """Merge into a file or folder, which appears only once it is complete."""
        out = out.expanduser()
        job, base, others = self._open_checked(out, overwrite=overwrite)
        sources = [base, *others]
        _check_free_space(job, out)
        workers = workers or default_workers(job)
        # More than one thread is not faster here, and makes the last digits depend on the machine.
        with (
            preserve_torch_state(threads=1, cuda=False),
            ThreadPoolExecutor(1) as beside,
            atomic_write(out, durable=True, folder=self.writes_folder) as temporary,
        ):
            # Checksums are as long as the work; they are computed beside it, and hashing leaves
            # the interpreter to others. Headers get them at the end: their length is known.
            digests = beside.submit(_digests, sources)
            if self.equalize:
                equalize_norms(job)
            layout = self._layout(job, base, temporary)
            metadata = self._metadata(job, sources)
            offsets = _create_files(job, base, temporary, layout, metadata)
            open_job = replace(self, factors=tuple(job.weights)).open_job
            changes = list(write_tensors(open_job, job, offsets, workers))
            metadata = self._metadata(job, sources, digests.result())
            _write_headers(job, layout, metadata)
            if temporary.is_dir():
                write_readme(temporary, out.name, json.loads(metadata["afield"]))
        log_merge_warnings(job, changes)
        return job

    @property
    def writes_folder(self) -> bool:
        """Whether the result is a folder: if the base is one, or if it is divided into shards."""
        return bool(self.shard_bytes) or self.base.expanduser().is_dir()

    def _layout(self, job: MergeJob, base: TensorFiles, target: Path) -> dict[Path, list[str]]:
        """The tensors of each file of the result."""
        if self.shard_bytes:
            return _divide(job, target, self.shard_bytes)
        if not base.is_folder:
            return {target: list(base.specs)}
        return {target / shard.name: names for shard, names in base.shards.items()}

    def _open_checked(
        self, out: Path, *, overwrite: bool
    ) -> tuple[MergeJob, TensorFiles, list[Source]]:
        self._check_out(out, overwrite=overwrite)
        job, base, others = self._open()
        _check_not_an_input(out, [file for source in (base, *others) for file in source.shards])
        return job, base, others

    def _open(self) -> tuple[MergeJob, TensorFiles, list[Source]]:
        names = [self.how, *(override.how for override in self.overrides)]
        for name in names:
            if name in ("", LEAVE):
                continue
            if needs_validation(registry.find("merges", name)):
                raise MergeError(
                    f"{name} chooses experts by their validation scores, which files do not have; "
                    f"use average, or `afield bench --merges {name}`"
                )
        _check_device(self.device)
        base = TensorFiles(self.base)
        experts = [open_expert(path, base) for path in self.experts]
        statistics = [TensorFiles(path) for path in self.statistics]
        job = self._plan(base, experts, statistics)
        return job, base, [*experts, *statistics]

    def _plan(
        self, base: TensorFiles, experts: Sequence[TensorSource], statistics: Sequence[TensorFiles]
    ) -> MergeJob:
        """One job for the tensors without an override, and one for each override."""
        owners = self._owners(base)
        factors = self.factors or weight_factors(self.expert_weights, len(experts))
        common: dict[str, Any] = {"device": self.device, "weights": factors}
        left = {name for name, owner in owners.items() if owner and owner.how == LEAVE}
        own = {name for name, owner in owners.items() if owner is None} | left
        job = plan_merge(
            *(self.how, base, experts),
            scale=self.scale,
            statistics=statistics,
            params=self.params,
            space=self.space,
            names=own if self.overrides else None,
            left=left,
            **common,
        )
        job.dtype = DTYPES.get(self.dtype)
        others = []
        for override in self.overrides:
            names = [name for name, owner in owners.items() if owner is override]
            if override.how == LEAVE or not names:
                continue
            how = override.how or self.how
            same = {} if override.how and override.how != self.how else self.params
            other = plan_merge(
                *(how, base, experts),
                scale=self.scale if override.scale is None else override.scale,
                statistics=statistics if needs_statistics(registry.find("merges", how)) else (),
                params={**same, **override.params},
                space=self.space,
                names=names,
                **common,
            )
            other.dtype = job.dtype
            others.append(other)
        job.overrides = others
        return job

    def _owners(self, base: TensorFiles) -> dict[str, Override | None]:
        """The first override that matches each tensor; a pattern must match some tensor."""
        for override in self.overrides:
            if not any(fnmatchcase(name, override.tensors) for name in base.specs):
                example = next(iter(base.specs), "none")
                raise MergeError(
                    f"{override.tensors}: matches no tensor of {base.label}, e.g. {example}"
                )
        return {
            name: next((o for o in self.overrides if fnmatchcase(name, o.tensors)), None)
            for name in base.specs
        }

    def _check_out(self, out: Path, *, overwrite: bool) -> None:
        """Raise if something would be lost, or if the layout differs from the base's."""
        _check_not_an_input(out, (self.base, *self.experts, *self.statistics))
        if self.writes_folder and out.exists():
            raise MergeError(f"{out}: exists already; give a new folder, or remove it yourself")
        if not self.writes_folder:
            check_output(out, overwrite=overwrite)
        if not self.writes_folder and out.suffix != ".safetensors":
            raise MergeError(
                f"{out}: the result is a safetensors file; name it {out.stem}.safetensors"
            )

    def _metadata(
        self,
        job: MergeJob,
        sources: Sequence[Source],
        digests: Mapping[Path, str] | None = None,
    ) -> dict[str, str]:
        """Metadata of the result; without digests, of the same length as with them."""
        provenance = json.dumps(self._provenance(job, sources, digests or {}))
        return {"format": "pt", **sources[0].metadata, "afield": provenance}

    def _provenance(
        self, job: MergeJob, sources: Sequence[Source], digests: Mapping[Path, str]
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
            **self._choices(job),
            "version": version("afield"),
        }

    def _choices(self, job: MergeJob) -> dict[str, Any]:
        """The choices that are not the usual ones, for the metadata."""
        choices = {
            "weights": list(self.expert_weights),
            "equalize": self.equalize,
            "overrides": [
                {
                    name: value
                    for name, value in vars(override).items()
                    if value not in ("", {}, None)
                }
                for override in self.overrides
            ],
            "dtype": self.dtype,
            "space": "core" if job.in_core_space else "",
        }
        return {name: value for name, value in choices.items() if value}


def open_expert(path: Path, base: TensorFiles) -> Source:
    """The tensors of an expert, with the names of the base: a model, or an adapter on the base."""
    if is_adapter(path):
        return AdaptedBase(Adapter(path), base)
    return TensorFiles(path, like=base.specs)


def equalize_norms(job: MergeJob) -> None:
    """Shorten the delta of every expert to the norm of the shortest one, before its weight."""
    squares = torch.zeros(len(job.experts), dtype=torch.float64)
    weights = torch.tensor(job.weights, dtype=torch.float64)
    names = [name for name in job.base.specs if job.acts_on(name)]
    for name in track(names, "norms", len(names)):
        squares += torch.tensor(delta_squares(job.owner(name), name), dtype=torch.float64)
    norms = torch.where(weights > 0, squares.sqrt() / weights, 0.0)
    if (norms > 0).any():
        weights *= torch.where(norms > 0, norms[norms > 0].min() / norms, 1.0)
    for each in (job, *job.overrides):
        each.weights = weights.tolist()


def _check_device(name: str) -> None:
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise SpecError(f"no device {name!r} ({reason}); use cpu, or leave it out") from None


def _digests(sources: Sequence[Source]) -> dict[Path, str]:
    return {shard: file_digest(shard) for source in sources for shard in source.shards}


def _check_not_an_input(out: Path, inputs: Iterable[Path]) -> None:
    for path in map(Path.expanduser, inputs):
        if out.exists() and path.exists() and out.samefile(path):
            raise MergeError(f"{out}: is one of the inputs; give another path for the result")


def _check_free_space(job: MergeJob, out: Path) -> None:
    specs = map(job.result_spec, job.base.specs)
    needed = sum(spec.size * spec.dtype.itemsize for spec in specs)
    existing = next(folder for folder in out.absolute().parents if folder.exists())
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise DataError(
            f"{out}: the result needs {format_bytes(needed)}, but {format_bytes(free)} are free; "
            "free some space, or write elsewhere"
        )


def _divide(job: MergeJob, folder: Path, most: int) -> dict[Path, list[str]]:
    """Tensors in files of at most `most` bytes, or of one tensor; with names of Hugging Face."""
    groups: list[list[str]] = [[]]
    filled = 0
    for name in job.base.specs:
        spec = job.result_spec(name)
        size = spec.size * spec.dtype.itemsize
        if groups[-1] and filled + size > most:
            groups.append([])
            filled = 0
        groups[-1].append(name)
        filled += size
    if len(groups) == 1:
        return {folder / "model.safetensors": groups[0]}
    count = len(groups)
    return {
        folder / f"model-{i:05}-of-{count:05}.safetensors": names
        for i, names in enumerate(groups, start=1)
    }


def _create_files(
    job: MergeJob,
    base: TensorFiles,
    temporary: Path,
    layout: Mapping[Path, list[str]],
    metadata: Mapping[str, str],
) -> Offsets:
    """Create all files of the result without entries; return where each tensor's entries belong."""
    if temporary not in layout:
        own_index = {shard.name for shard in base.shards} == {file.name for file in layout}
        for file in base.path.iterdir() if base.is_folder else ():
            skipped = file.suffix in SKIPPED_SUFFIXES or file.name in DESCRIPTION_FILES
            is_index = file.name.endswith(INDEX_SUFFIX) and not own_index
            if file.is_file() and not skipped and not is_index:
                shutil.copyfile(file, temporary / file.name)
        if len(layout) > 1 and not own_index:
            _write_index(job, temporary, layout)
    return _write_headers(job, layout, metadata)


def _write_index(job: MergeJob, folder: Path, layout: Mapping[Path, list[str]]) -> None:
    specs = {name: job.result_spec(name) for names in layout.values() for name in names}
    total = sum(spec.size * spec.dtype.itemsize for spec in specs.values())
    files = {name: file.name for file, names in layout.items() for name in names}
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(files.items()))}
    path = folder / f"model{INDEX_SUFFIX}"
    path.write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _write_headers(
    job: MergeJob, layout: Mapping[Path, list[str]], metadata: Mapping[str, str]
) -> Offsets:
    """Write the headers of all files, without a change to the entries that follow them."""
    offsets = {}
    for file, names in layout.items():
        starts = write_header(file, {name: job.result_spec(name) for name in names}, metadata)
        offsets.update({name: (file, start) for name, start in starts.items()})
    return offsets


def write_readme(folder: Path, name: str, made: Mapping[str, Any]) -> None:
    """The README of a merged folder: how it was made, from the metadata."""
    experts = [", ".join(files) for files in made["experts"]]
    settings = {**made["params"], "scale": made["scale"]}
    for choice in ("weights", "equalize", "dtype", "space", "rank"):
        if choice in made:
            settings[choice] = made[choice]
    rows = [
        ("base", made.get("base", {})),
        *((f"expert {i}", f) for i, f in enumerate(made["experts"], 1)),
    ]
    lines = [
        *("---", "tags:", "- merge", "- afield", "---", "", f"# {escape_markdown(name)}", ""),
        f"`{made['merge']}` of {len(experts)} models, merged without data by afield "
        f"{made['version']}.",
        "",
        *("| setting | value |", "| --- | --- |"),
        *(f"| {key} | {escape_markdown(str(value))} |" for key, value in settings.items()),
        "",
        *("| input | file | SHA-256 (first digits) |", "| --- | --- | --- |"),
        *(
            f"| {role} | {escape_markdown(file)} | {digest} |"
            for role, files in rows
            for file, digest in files.items()
        ),
        "",
        "Tensors: "
        + ", ".join(f"{count} {action}" for action, count in made["tensors"].items())
        + ".",
    ]
    (folder / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
