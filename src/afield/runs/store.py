"""The store: records, weights, snapshots and failures, in a folder or at an address.

    store/<key>/record.json         written last: a run with a record is finished
    store/<key>/model.safetensors   the deployed weights, from the best checkpoint
    store/<key>/adapter.safetensors with LoRA: the factors, and all else that was trained
    store/<key>/parts.safetensors   weights of a method's other networks at that checkpoint
    store/<key>/snapshot.pt         during a run: the state to continue from after a kill
    store/<key>/progress.json       during a run: the steps done so far
    store/<key>/failure.json        why a run failed; removed when a later attempt succeeds
    store/plans/<number>.json       the keys of the runs of one command, for `afield status`
    store/plans/<number>.runs.jsonl.gz   these runs, for `afield work`

Every file is written under a temporary name, flushed and renamed, so it is never incomplete.

A store may be at an address (s3://, gs://, or any other that fsspec knows), for many machines.
Every process mirrors such a store in a temporary folder. It downloads a file before reading it, and
uploads a file after writing it, the record last; all other code works with local files. Object
stores have no locks. Two sweeps that use one address at the same time may do a run twice, with the
same result. Within one sweep this does not happen, on any number of machines.
"""

import hashlib
import json
import logging
import os
import re
import tempfile
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import Timeout
from pydantic import TypeAdapter

from afield.compute import pause_cycle_search
from afield.errors import AfieldError, DataError, SpecError
from afield.files import (
    acquire_lock,
    atomic_write,
    check_locks,
    check_regular_file,
    remove_abandoned,
    unwritable_reason,
)
from afield.runs.record import Failure, Plan, Progress, Record
from afield.runs.run import Run
from afield.runs.run_files import (
    RECORD,
    ContentCache,
    as_json,
    entries,
    files_in_folders,
    on_cpu,
    read_run_weights,
    readable,
)
from afield.training.scores import Checkpoint

if TYPE_CHECKING:
    from torch import Tensor


log = logging.getLogger(__name__)

# Commands that only read records must not import torch, which takes seconds.


_FAILURE = TypeAdapter(Failure)
_PROGRESS = TypeAdapter(Progress)
_PLAN = TypeAdapter(Plan)
# At the end of a snapshot, before the SHA-256 of what precedes it.
SNAPSHOT_SEAL = b"afield snapshot sha256 "
SHA256_BYTES, CHUNK_BYTES = 32, 2**20
# A local folder of such a name is a mistyped address.
ADDRESS_TYPO = re.compile(r"[a-z][a-z0-9+]+:(/|$)")
# Locked for a moment before a sweep, to see whether that is possible.
LOCK_FILE = ".lock"
# What LoRA has changed, under the names of peft.
ADAPTER_FILE = "adapter.safetensors"
# Files that a finished run no longer needs.
TEMPORARY_FILES = ("snapshot.pt", "progress.json", "failure.json")
_CHECKPOINTS = TypeAdapter(tuple[Checkpoint, ...])
# The end of the name of an archive, which `afield.runs.archive` reads.
ARCHIVE_SUFFIX = ".jsonl.gz"


class BusyError(Exception):
    """Another process is working on this run, which is no failure."""


class Store:
    """A folder of records. Any number of processes may use one at the same time."""

    # Whether `claim` keeps the processes of other machines from a run as well.
    has_claims = True

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        self._records = ContentCache(RECORD)
        self._failures = ContentCache(_FAILURE)

    def __reduce__(self) -> tuple[Any, ...]:
        # A worker may have another working directory.
        return type(self), (self.root.absolute(),)

    @pause_cycle_search()
    def __iter__(self) -> Iterator[Record]:
        """All records, in the order of their keys; unreadable ones are logged and skipped."""
        records = [self._records.read(path) for path in self._look("record.json")]
        return (record for record in records if record is not None)

    def prepare(self) -> None:
        """Create the folder, to report before any training that it cannot be written."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SpecError(
                f"cannot write to {self.root} ({error.strerror}); use --store"
            ) from None
        if not os.access(self.root, os.W_OK):
            reason = unwritable_reason(self.root)
            raise SpecError(f"cannot write to {self.root} ({reason}); use --store")
        self._check_locks()
        self._remove_leftovers()

    def _check_locks(self) -> None:
        """Report before any training that the file system refuses locks, which runs need."""
        path = self.root / LOCK_FILE
        try:
            check_locks(path)
        except OSError as error:
            raise SpecError(
                f"cannot lock {path} ({error.strerror}); use a --store on another file system"
            ) from None

    def _remove_leftovers(self) -> None:
        """Remove what killed processes left behind: parts of files, and what finished runs keep.

        A temporary file that is newer than the record belongs to a run that is done once more.
        """
        for folder in (self.root, self.root / "plans"):
            remove_abandoned(folder)
        for name in TEMPORARY_FILES:
            for path in files_in_folders(self.root, name):
                _remove_older_than_record(path)

    def tidy(self, run: Run) -> None:
        """Remove what a process that was killed after writing the record left of a finished run."""
        for name in TEMPORARY_FILES:
            _remove_older_than_record(self.folder(run) / name)

    def get(self, run: Run) -> Record | None:
        """The record of a run, if it is finished and was evaluated for its rules and groups.

        A record that cannot be read is reported; its run counts as not done.
        """
        path = self._fetch_file(self.folder(run) / "record.json")
        record = self._records.read(path)
        if record is None:
            return None
        if run.group not in ("", record.run.group) or not set(run.rules) <= set(record.run.rules):
            return None
        return replace(record, run=run)

    def with_stored_rules(self, run: Run) -> Run:
        """The run with the rules and groups of its stored record, so that no scores are lost."""
        record = self._records.read(self.folder(run) / "record.json")
        if record is None:
            return run
        rules = tuple(dict.fromkeys((*record.run.rules, *run.rules)))
        return replace(run, rules=rules, group=run.group or record.run.group)

    def put(
        self,
        record: Record,
        weights: "Mapping[str, Tensor]",
        *,
        parts: "Mapping[str, Tensor] | None" = None,
        adapter: "Mapping[str, Tensor] | None" = None,
        inputs: Mapping[str, Any] | None = None,
    ) -> None:
        """Write a record and its deployed weights, which makes the run a finished one.

        `parts` are the weights of a method's other networks, for diagnostics; `adapter` is what
        LoRA has changed, which the deployed weights include; `inputs` (classes, mean and std of the
        scaling) goes into the metadata of the deployed weights.
        """
        from safetensors.torch import save

        folder = self.folder(record.run)
        # A single entry, because safetensors writes several in an arbitrary order.
        content = {"run": record.run.key, **(inputs or {})}
        metadata = {"afield": json.dumps(content, sort_keys=True)}
        if parts:
            self._keep(folder / "parts.safetensors", save(on_cpu(parts)))
        if adapter:
            self._keep(folder / ADAPTER_FILE, save(on_cpu(adapter)))
        self._keep(folder / "model.safetensors", save(on_cpu(weights), metadata=metadata))
        written = replace(record, checkpoints=tuple(record.checkpoints))
        self._keep(folder / "record.json", as_json(RECORD, written))
        for leftover in TEMPORARY_FILES:
            self._forget(folder / leftover)

    def weights(self, run: Run) -> "dict[str, Tensor]":
        """The deployed weights of a finished run."""
        self.fetch(run.key)
        return read_run_weights(self.folder(run))

    def put_failure(self, failure: Failure) -> None:
        """Write why a run failed, unless another process has finished it meanwhile."""
        with self.claim(failure.run):
            if self.get(failure.run) is None:
                folder = self.folder(failure.run)
                self._keep(folder / "failure.json", as_json(_FAILURE, failure))
                self._forget(folder / "progress.json")

    def failures(self, keys: Collection[str] | None = None) -> list[Failure]:
        """Failures of runs that have not succeeded since; of all runs, or of those with `keys`."""
        failures = [self._failures.read(path) for path in self._look("failure.json", keys)]
        return [failure for failure in failures if failure is not None]

    def put_progress(self, progress: Progress) -> None:
        """Write how far a run is, for `afield status` only."""
        content = as_json(_PROGRESS, progress)
        self._keep(self.folder(progress.run) / "progress.json", content, lasting=False)

    def progress(self, keys: Collection[str] | None = None) -> list[Progress]:
        """Progress of the runs that have neither finished nor failed."""
        return list(readable(_PROGRESS, self._look("progress.json", keys)))

    def put_plan(self, plan: Plan) -> None:
        """Write a plan; it replaces an earlier plan of the same runs."""
        folder = self.root / "plans"
        folder.mkdir(parents=True, exist_ok=True)
        self._keep(folder / f"{plan.number}.json", as_json(_PLAN, plan))

    def plans(self) -> list[Plan]:
        """All plans, the latest last."""
        plans = readable(_PLAN, self._look_at_plans())
        return sorted(plans, key=lambda plan: plan.started)

    def done(self, keys: Collection[str] | None = None) -> set[str]:
        """The keys of finished runs: of all, or of those among `keys`."""
        return {path.parent.name for path in self._look("record.json", keys)}

    def begun(self, keys: Collection[str]) -> set[str]:
        """Those of the keys whose runs may have files; runs that nobody has started have none."""
        return set(keys).intersection(entries(self.root))

    @pause_cycle_search()
    def known(self, runs: Sequence[Run]) -> list[Record | None]:
        """The records of several runs, as `get` returns them."""
        return [self.get(run) for run in runs]

    def fetch(self, *keys: str) -> None:
        """Download the files of finished runs, for a run that starts from them."""
        for key in keys:
            for name in ("record.json", "model.safetensors", "parts.safetensors", ADAPTER_FILE):
                self._fetch_file(self.root / key / name)

    def where(self, run: Run | None = None) -> str:
        """The location of the store or of a run in it, as text."""
        return str(self.folder(run) if run else self.root)

    def put_file(self, name: str, content: bytes) -> str:
        """Write another file beside the records and return its location."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        self._keep(path, content)
        return f"{self.where()}/{name}"

    def get_file(self, name: str) -> Path:
        """The local path of another file, downloaded first; it may not exist."""
        return self._fetch_file(self.root / name)

    def _keep(self, path: Path, content: bytes, *, lasting: bool = True) -> None:
        with atomic_write(path, durable=lasting, parents=False) as temporary:
            temporary.write_bytes(content)
        self._send_file(path)

    # `RemoteStore` overrides the following methods.

    def _look(self, name: str, keys: Collection[str] | None = None) -> list[Path]:
        """The files of this name in the folders of all runs or of some, sorted by their keys."""
        return files_in_folders(self.root, name, keys)

    def _look_at_plans(self) -> list[Path]:
        return sorted(self.root.glob("plans/*.json"))

    def _fetch_file(self, path: Path) -> Path:
        """Called before a file is read; returns its path, whether or not it exists."""
        return path

    def _send_file(self, path: Path) -> None:
        """Called when a file has been written."""

    def _forget(self, path: Path) -> None:
        """Remove a file, if it exists."""
        path.unlink(missing_ok=True)

    def put_snapshot(self, run: Run, state: Mapping[str, Any], done: Sequence[Checkpoint]) -> None:
        """Write the state from which to continue a run."""
        import torch

        checkpoints = as_json(_CHECKPOINTS, tuple(done)).decode()
        path = self.folder(run) / "snapshot.pt"
        written = atomic_write(path, durable=True, parents=False)
        # Given a path, torch would report a full disk as a RuntimeError.
        with written as temporary, temporary.open("wb+") as file:
            torch.save({**state, "checkpoints": checkpoints}, file)
            file.seek(0)
            digest = hashlib.file_digest(file, "sha256").digest()
            file.write(SNAPSHOT_SEAL + digest)
        self._send_file(path)

    def snapshot(self, run: Run) -> tuple[dict[str, Any], list[Checkpoint]] | None:
        """The state and checkpoints to continue from, if there is a readable snapshot."""
        import torch

        path = self._fetch_file(self.folder(run) / "snapshot.pt")
        if not path.exists():
            return None
        try:
            _check_seal(path)
            state = torch.load(path, map_location="cpu", weights_only=True)
            return state, list(_CHECKPOINTS.validate_json(state.pop("checkpoints")))
        except Exception as error:  # noqa: BLE001  a broken file makes torch raise nearly anything
            reason = str(error).partition("\n")[0][:120]
            log.warning("%s: not a readable snapshot (%s); starting again", path, reason)
            return None

    def drop_snapshot(self, run: Run) -> None:
        """Remove the snapshot of a run."""
        self._forget(self.folder(run) / "snapshot.pt")

    def folder(self, run: Run) -> Path:
        """The folder with all files of a run."""
        return self.root / run.key

    @contextmanager
    def claim(self, run: Run, *, wait: bool = True) -> Iterator[None]:
        """Lock a run for this process; the operating system releases the lock if it dies."""
        folder = self.folder(run)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = acquire_lock(folder / "lock", wait=wait)
        except Timeout:
            raise BusyError(run.key) from None
        except OSError as error:
            raise SpecError(f"cannot write to {folder} ({error.strerror}); use --store") from None
        try:
            for leftover in folder.glob("*.part"):
                leftover.unlink()
            yield
        finally:
            lock.release()


def _remove_older_than_record(path: Path) -> None:
    """Remove a temporary file of a run, unless it belongs to one that is done once more."""
    with suppress(OSError):
        if path.stat().st_mtime <= path.with_name("record.json").stat().st_mtime:
            path.unlink()


def _check_seal(path: Path) -> None:
    """Raise unless a snapshot has the digest at its end with which it was written.

    A snapshot that was changed could still be loaded, and would end in a trace or in other weights.
    """
    check_regular_file(path)
    with path.open("rb") as file:
        length = file.seek(0, os.SEEK_END) - len(SNAPSHOT_SEAL) - SHA256_BYTES
        file.seek(max(0, length))
        seal = file.read()
        file.seek(0)
        digest, left = hashlib.sha256(), max(0, length)
        while chunk := file.read(min(left, CHUNK_BYTES)):
            digest.update(chunk)
            left -= len(chunk)
    if seal != SNAPSHOT_SEAL + digest.digest():
        raise DataError("changed since it was written, or from an earlier version")


def open_store(location: str | Path | Store) -> Store:
    """The store at a location: a folder, an address such as s3://bucket/runs, or an archive.

    >>> open_store("runs").where()
    'runs'
    >>> open_store("memory://bucket/runs").where()
    'memory://bucket/runs'
    """
    if isinstance(location, Store):
        return location
    if not str(location).strip():
        raise SpecError("the name of the store is empty; give a folder or an address")
    if "://" in str(location):
        return RemoteStore(str(location))
    if ADDRESS_TYPO.match(str(location)):
        raise SpecError(f"{location}: not an address; write it with two slashes: s3://bucket/runs")
    if str(location).endswith(ARCHIVE_SUFFIX):
        from afield.runs.archive import Archive

        return Archive(location)
    return Store(location)


def fetch_run(location: str) -> Path:
    """The local folder of a finished run, downloaded first if it is at an address."""
    if "://" not in location:
        return Path(location)
    address, _, key = location.rstrip("/").rpartition("/")
    store = RemoteStore(address)
    store.fetch(key)
    return store.root / key


class RemoteStore(Store):
    """Records at an address. Any number of machines may read them at the same time."""

    has_claims = False

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        self.files, self.path = _file_system(address)
        # The remote version of every file in the mirror.
        self._states: dict[Path, str] = {}
        super().__init__(Path(_mirror(self.address).name))

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteStore, (self.address,)

    def prepare(self) -> None:
        """Write a trial file, to report before any training that the address cannot be written."""
        try:
            self.files.makedirs(f"{self.path}/plans", exist_ok=True)
            trial = f"{self.path}/plans/{uuid.uuid4().hex}.part"
            self.files.pipe_file(trial, b"")
            self.files.rm_file(trial)
        except Exception as error:  # noqa: BLE001  every kind of address has errors of its own
            raise SpecError(f"cannot write to {self.address} ({error}); use --store") from None

    def known(self, runs: Sequence[Run]) -> list[Record | None]:
        """The records of several runs; lists the address once instead of asking for every run."""
        done = self.done()
        return [self.get(run) if run.key in done else None for run in runs]

    def where(self, run: Run | None = None) -> str:
        """The address of the store or of a run in it."""
        return f"{self.address}/{run.key}" if run else self.address

    def begun(self, keys: Collection[str]) -> set[str]:
        """All keys: to list the address takes as long as to look for their files."""
        return set(keys)

    def _look(self, name: str, keys: Collection[str] | None = None) -> list[Path]:
        paths = self._mirror_files(f"*/{name}")
        return [path for path in paths if keys is None or path.parent.name in keys]

    def _look_at_plans(self) -> list[Path]:
        return self._mirror_files("plans/*.json")

    def _mirror_files(self, pattern: str) -> list[Path]:
        """Download the files that match a pattern and have changed; return the paths of all."""
        with self._report_errors():
            listing = self.files.glob(f"{self.path}/{pattern}", detail=True)
            states = {self._here(path): _state(info) for path, info in listing.items()}
            changed = {
                path: here
                for path, here in zip(listing, states, strict=True)
                if self._states.get(here) != states[here]
            }
            # Files that were removed meanwhile are omitted.
            contents = self.files.cat(list(changed), on_error="omit") if changed else {}
        for path, content in contents.items():
            here = changed[path]
            with atomic_write(here) as temporary:
                temporary.write_bytes(content)
            self._states[here] = states[here]
        for path in set(self.root.glob(pattern)) - set(states):
            path.unlink(missing_ok=True)
        return sorted(path for path in states if path.exists())

    def _fetch_file(self, path: Path) -> Path:
        with self._report_errors():
            try:
                state = _state(self.files.info(self._there(path)))
            except FileNotFoundError:
                path.unlink(missing_ok=True)
                return path
            if self._states.get(path) != state or not path.exists():
                with atomic_write(path) as temporary:
                    self.files.get_file(self._there(path), str(temporary))
                self._states[path] = state
        return path

    def _send_file(self, path: Path) -> None:
        """Upload a file under a temporary name, then rename it, so it is never incomplete."""
        there = self._there(path)
        part = f"{there}.{uuid.uuid4().hex}.part"
        with self._report_errors("written"):
            self.files.makedirs(part.rpartition("/")[0], exist_ok=True)
            self.files.put_file(str(path), part)
            self.files.mv(part, there)

    def _forget(self, path: Path) -> None:
        super()._forget(path)
        # Another process may have removed it meanwhile.
        with self._report_errors("written"), suppress(FileNotFoundError):
            if self.files.exists(self._there(path)):
                self.files.rm_file(self._there(path))

    def _there(self, path: Path) -> str:
        return f"{self.path}/{path.relative_to(self.root).as_posix()}"

    def _here(self, path: str) -> Path:
        return self.root.joinpath(*path.rsplit("/", 2)[-2:])

    @contextmanager
    def _report_errors(self, action: str = "read") -> Iterator[None]:
        try:
            yield
        except AfieldError:
            raise
        except Exception as error:  # noqa: BLE001  every kind of address has errors of its own
            raise DataError(f"{self.address}: cannot be {action} ({error})") from None


def _state(info: dict[str, Any]) -> str:
    """A text that changes when a file at an address changes."""
    names = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "last_modified", "created", "size")
    return " ".join(str(info.get(name)) for name in names)


def _file_system(address: str) -> tuple[Any, str]:
    import fsspec

    if not address.partition("://")[2].strip("/"):
        raise SpecError(f"{address}: names no place; write e.g. s3://bucket/runs")
    try:
        files, path = fsspec.core.url_to_fs(address)
    except (ImportError, ValueError, OSError) as error:
        raise SpecError(f"{address}: cannot be opened ({error})") from None
    return files, path.rstrip("/")


@lru_cache
def _mirror(address: str) -> "tempfile.TemporaryDirectory[str]":
    """The mirror of an address in this process, removed when the process ends."""
    del address
    return tempfile.TemporaryDirectory(prefix="afield-")
