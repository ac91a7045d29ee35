"""The folder that keeps records, weights, snapshots and failures.

    store/<key>/record.json         written last: where it is, the run is done
    store/<key>/model.safetensors   the deployed weights, at the checkpoint that was best
    store/<key>/parts.safetensors   those of further networks then, where the method has any
    store/<key>/snapshot.pt         while a run goes on: all that is needed to go on after a kill
    store/<key>/progress.json       while a run goes on: how far it is
    store/<key>/failure.json        why a run failed; gone when a later start succeeds
    store/plans/<number>.json       what was asked for at once, for those who follow it

Every file is written under another name, flushed, and renamed: it is whole or not there.
"""

import hashlib
import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from filelock import FileLock, Timeout
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor

from afield.errors import DataError, SpecError
from afield.experiments.record import Failure, Plan, Progress, Record, Run
from afield.files import atomic_write
from afield.training.evaluation import Checkpoint

__all__ = ["BusyError", "Store", "read_record", "read_run_inputs", "read_run_weights"]

log = logging.getLogger(__name__)

_RECORD = TypeAdapter(Record)
_FAILURE = TypeAdapter(Failure)
_PROGRESS = TypeAdapter(Progress)
_PLAN = TypeAdapter(Plan)
# What a finished run no longer needs.
TEMPORARY_FILES = ("snapshot.pt", "progress.json", "failure.json")
_CHECKPOINTS = TypeAdapter(tuple[Checkpoint, ...])


class BusyError(Exception):
    """Another process is at this run; nothing is wrong."""


class Store:
    """A folder of records. Any number of processes may use one at the same time."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)

    def __reduce__(self) -> tuple[Any, ...]:
        # A worker may be in another folder.
        return type(self), (self.root.absolute(),)

    def __iter__(self) -> Iterator[Record]:
        """All records, in the order of their keys; one that cannot be read is reported."""
        yield from _readable(_RECORD, self._look("*/record.json"))

    def prepare(self) -> None:
        """Make the folder, so that a place that cannot be written is known before any work."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SpecError(
                f"cannot write to {self.root} ({error.strerror}); use --store"
            ) from None
        if not os.access(self.root, os.W_OK):
            raise SpecError(f"cannot write to {self.root} (no permission); use --store")

    def get(self, run: Run) -> Record | None:
        """The record of a run, if it is done and was read for all the rules that are asked for."""
        path = self._brought(self.folder(run) / "record.json")
        if not path.exists():
            return None
        record = _read(_RECORD, path)
        return replace(record, run=run) if set(run.rules) <= set(record.run.rules) else None

    def with_stored_rules(self, run: Run) -> Run:
        """The run with the rules of its present record as well, so that nothing known is lost."""
        path = self.folder(run) / "record.json"
        known: tuple[str, ...] = _read(_RECORD, path).run.rules if path.exists() else ()
        return replace(run, rules=tuple(dict.fromkeys((*known, *run.rules))))

    def put(
        self,
        record: Record,
        weights: Mapping[str, Tensor],
        *,
        parts: Mapping[str, Tensor] | None = None,
        inputs: Mapping[str, Any] | None = None,
    ) -> None:
        """Keep a record and its deployed weights; the run is done from here on.

        `parts` are the weights of a method's further networks, for diagnostics; `inputs` (classes,
        mean and std of the scaling) goes into the metadata of the deployed weights.
        """
        folder = self.folder(record.run)
        # One entry: several would be written in an order that is not the same twice.
        told = {"run": record.run.key, **(inputs or {})}
        metadata = {"afield": json.dumps(told, sort_keys=True)}
        if parts:
            self._keep(folder / "parts.safetensors", save(_plain(parts)))
        self._keep(folder / "model.safetensors", save(_plain(weights), metadata=metadata))
        self._keep(folder / "record.json", _as_json(_RECORD, record))
        for leftover in TEMPORARY_FILES:
            self._forget(folder / leftover)

    def weights(self, run: Run) -> dict[str, Tensor]:
        """The deployed weights of a finished run."""
        self.fetch(run.key)
        return read_run_weights(self.folder(run))

    def put_failure(self, failure: Failure) -> None:
        """Keep the reason of a failure, unless another process has done the run since."""
        with self.claim(failure.run):
            if self.get(failure.run) is None:
                folder = self.folder(failure.run)
                self._keep(folder / "failure.json", _as_json(_FAILURE, failure))
                self._forget(folder / "progress.json")

    def failures(self) -> list[Failure]:
        """The runs that have failed and not succeeded since."""
        return list(_readable(_FAILURE, self._look("*/failure.json")))

    def put_progress(self, progress: Progress) -> None:
        """Say how far a run is. It is for looking only: nothing depends on it."""
        content = _as_json(_PROGRESS, progress)
        self._keep(self.folder(progress.run) / "progress.json", content, lasting=False)

    def progress(self) -> list[Progress]:
        """The runs that were begun and have neither ended nor failed."""
        return list(_readable(_PROGRESS, self._look("*/progress.json")))

    def put_plan(self, plan: Plan) -> None:
        """Say what is asked for; the same asked again takes the place of the earlier plan."""
        number = hashlib.sha256(" ".join(sorted(plan.keys)).encode()).hexdigest()[:16]
        folder = self.root / "plans"
        folder.mkdir(parents=True, exist_ok=True)
        self._keep(folder / f"{number}.json", _as_json(_PLAN, plan))

    def plans(self) -> list[Plan]:
        """What was asked for, the latest last."""
        found = _readable(_PLAN, self._look("plans/*.json"))
        return sorted(found, key=lambda plan: plan.started)

    def done(self) -> set[str]:
        """The keys of all runs that are done."""
        return {path.parent.name for path in self._look("*/record.json")}

    def known(self, runs: Sequence[Run]) -> list[Record | None]:
        """The records of many runs, as `get` has them."""
        return [self.get(run) for run in runs]

    def fetch(self, *keys: str) -> None:
        """Make the files of finished runs be in the folder, for a run that starts from them."""
        for key in keys:
            for name in ("record.json", "model.safetensors", "parts.safetensors"):
                self._brought(self.root / key / name)

    def where(self, run: Run | None = None) -> str:
        """Where the store is, or where in it the files of a run lie, in words."""
        return str(self.folder(run) if run else self.root)

    def put_file(self, name: str, content: bytes) -> str:
        """Keep something else beside the records; says where it is."""
        self._keep(self.root / name, content)
        return f"{self.where()}/{name}"

    def _keep(self, path: Path, content: bytes, *, lasting: bool = True) -> None:
        with atomic_write(path, durable=lasting, parents=False) as temporary:
            temporary.write_bytes(content)
        self._sent(path)

    # What a store that is not a folder does otherwise.

    def _look(self, pattern: str) -> list[Path]:
        """The files of a pattern, in the order of their names."""
        return sorted(self.root.glob(pattern))

    def _brought(self, path: Path) -> Path:
        """The path of a file that is about to be read, if it is there."""
        return path

    def _sent(self, path: Path) -> None:
        """Called when a file has been written."""

    def _forget(self, path: Path) -> None:
        """Remove a file, if it is there."""
        path.unlink(missing_ok=True)

    def put_snapshot(self, run: Run, state: Mapping[str, Any], done: Sequence[Checkpoint]) -> None:
        """Keep all that is needed to go on with a run."""
        checkpoints = _as_json(_CHECKPOINTS, tuple(done)).decode()
        path = self.folder(run) / "snapshot.pt"
        written = atomic_write(path, durable=True, parents=False)
        # Given a path, torch would report a full disk as a RuntimeError.
        with written as temporary, temporary.open("wb") as file:
            torch.save({**state, "checkpoints": checkpoints}, file)
        self._sent(path)

    def snapshot(self, run: Run) -> tuple[dict[str, Any], list[Checkpoint]] | None:
        """The state to go on from, if there is one."""
        path = self._brought(self.folder(run) / "snapshot.pt")
        if not path.exists():
            return None
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
            return state, list(_CHECKPOINTS.validate_json(state.pop("checkpoints")))
        except (OSError, EOFError, RuntimeError, KeyError, UnpicklingError, ValidationError):
            log.warning("%s: not a readable snapshot; starting again", path)
            return None

    def drop_snapshot(self, run: Run) -> None:
        """Forget the state to go on from."""
        self._forget(self.folder(run) / "snapshot.pt")

    def folder(self, run: Run) -> Path:
        """Where all files of a run lie."""
        return self.root / run.key

    @contextmanager
    def claim(self, run: Run, *, wait: bool = True) -> Iterator[None]:
        """Keep other processes away from a run; the system lets go of it when a process dies."""
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


def read_run_weights(folder: Path, name: str = "model") -> dict[str, Tensor]:
    """The deployed weights in the folder of a finished run, or those of its `parts`."""
    path = folder / f"{name}.safetensors"
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path}: no readable weights ({error}); run it again") from None


def read_run_inputs(folder: Path) -> dict[str, Any]:
    """What the deployed weights of a finished run say of its inputs: classes, shape, scaling."""
    path = folder / "model.safetensors"
    try:
        with safe_open(path, "pt") as file:
            found: dict[str, Any] = json.loads(file.metadata()["afield"])
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: no readable weights of ours ({error}); run it again") from None
    return found


def read_record(folder: Path) -> Record:
    """The record of a folder in a store; its run is its own configuration file."""
    path = folder / "record.json"
    if not path.exists():
        raise DataError(f"{folder}: no record.json there; give the folder of a finished run")
    record: Record = _read(_RECORD, path)
    return record


def _plain(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}


def _as_json(adapter: TypeAdapter[Any], value: Any) -> bytes:
    """JSON that keeps NaN and infinity, as an unseen domain's loss may be."""
    return json.dumps(adapter.dump_python(value, exclude_none=True)).encode()


def _readable(adapter: TypeAdapter[Any], paths: Iterable[Path]) -> Iterator[Any]:
    """What the files hold; one that cannot be read is reported."""
    for path in paths:
        try:
            yield _read(adapter, path)
        except DataError as error:
            log.warning("left out: %s", error)
        except FileNotFoundError:  # gone since: its run has ended
            continue


def _read(adapter: TypeAdapter[Any], path: Path) -> Any:
    try:
        return adapter.validate_json(path.read_bytes())
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(step) for step in first["loc"]) or "the whole file"
        told = f"{path}: not a record of ours ({where}: {first['msg']})"
        raise DataError(f"{told}; remove it to do the run again") from None
