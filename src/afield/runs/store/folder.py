"""The folder that keeps records, weights, snapshots and failures.

    store/<key>/record.json         written last: a run with a record is finished
    store/<key>/model.safetensors   the deployed weights, from the best checkpoint
    store/<key>/parts.safetensors   weights of a method's other networks at that checkpoint
    store/<key>/snapshot.pt         during a run: the state to continue from after a kill
    store/<key>/progress.json       during a run: the steps done so far
    store/<key>/failure.json        why a run failed; removed when a later attempt succeeds
    store/plans/<number>.json       the runs of one command, for `afield status`

Every file is written under a temporary name, flushed and renamed, so it is never incomplete.
"""

import hashlib
import json
import logging
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout
from pydantic import TypeAdapter, ValidationError

from afield.compute import pause_cycle_search
from afield.errors import SpecError
from afield.files import atomic_write, remove_abandoned, unwritable_reason
from afield.runs.record import Failure, Plan, Progress, Record, Run
from afield.runs.store.run_files import (
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

# Commands that only read records must not import torch, which takes seconds.
if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["BusyError", "Store"]

log = logging.getLogger(__name__)

_FAILURE = TypeAdapter(Failure)
_PROGRESS = TypeAdapter(Progress)
_PLAN = TypeAdapter(Plan)
# Files that a finished run no longer needs.
TEMPORARY_FILES = ("snapshot.pt", "progress.json", "failure.json")
_CHECKPOINTS = TypeAdapter(tuple[Checkpoint, ...])


class BusyError(Exception):
    """Another process is working on this run, which is no failure."""


class Store:
    """A folder of records. Any number of processes may use one at the same time."""

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
        self._remove_leftovers()

    def _remove_leftovers(self) -> None:
        """Remove what killed processes left behind: parts of files, and what finished runs keep.

        A temporary file that is newer than the record belongs to a run that is done once more.
        """
        for folder in (self.root, self.root / "plans"):
            remove_abandoned(folder)
        for name in TEMPORARY_FILES:
            for path in files_in_folders(self.root, name):
                with suppress(OSError):
                    if path.stat().st_mtime <= path.with_name("record.json").stat().st_mtime:
                        path.unlink()

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
        inputs: Mapping[str, Any] | None = None,
    ) -> None:
        """Write a record and its deployed weights, which makes the run a finished one.

        `parts` are the weights of a method's other networks, for diagnostics; `inputs` (classes,
        mean and std of the scaling) goes into the metadata of the deployed weights.
        """
        from safetensors.torch import save

        folder = self.folder(record.run)
        # A single entry, because safetensors writes several in an arbitrary order.
        content = {"run": record.run.key, **(inputs or {})}
        metadata = {"afield": json.dumps(content, sort_keys=True)}
        if parts:
            self._keep(folder / "parts.safetensors", save(on_cpu(parts)))
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
        number = hashlib.sha256(" ".join(sorted(plan.keys)).encode()).hexdigest()[:16]
        folder = self.root / "plans"
        folder.mkdir(parents=True, exist_ok=True)
        self._keep(folder / f"{number}.json", as_json(_PLAN, plan))

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
            for name in ("record.json", "model.safetensors", "parts.safetensors"):
                self._fetch_file(self.root / key / name)

    def where(self, run: Run | None = None) -> str:
        """The location of the store or of a run in it, as text."""
        return str(self.folder(run) if run else self.root)

    def put_file(self, name: str, content: bytes) -> str:
        """Write another file beside the records and return its location."""
        self._keep(self.root / name, content)
        return f"{self.where()}/{name}"

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
        with written as temporary, temporary.open("wb") as file:
            torch.save({**state, "checkpoints": checkpoints}, file)
        self._send_file(path)

    def snapshot(self, run: Run) -> tuple[dict[str, Any], list[Checkpoint]] | None:
        """The state and checkpoints to continue from, if there is a readable snapshot."""
        import torch

        path = self._fetch_file(self.folder(run) / "snapshot.pt")
        if not path.exists():
            return None
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
            return state, list(_CHECKPOINTS.validate_json(state.pop("checkpoints")))
        except (OSError, EOFError, RuntimeError, KeyError, UnpicklingError, ValidationError):
            log.warning("%s: not a readable snapshot; starting again", path)
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
            lock = FileLock(folder / "lock")
            lock.acquire(timeout=-1 if wait else 0)
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
