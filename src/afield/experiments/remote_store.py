"""A store at an address (s3://, gs://, or any other that fsspec knows), for many machines.

Every process has a mirror of it in a folder of its own: what it reads is brought there, what it
writes is written there and then sent, the record last. So all else works on files as ever.

Object stores have no locks. Two sweeps that work on one address at the same time may do a run
twice; it comes out the same. Within one sweep, on any number of machines, that does not happen.
"""

import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import fsspec

from afield.errors import AfieldError, DataError, SpecError
from afield.experiments.record import Record, Run
from afield.experiments.store import Store
from afield.files import atomic_write

__all__ = ["RemoteStore", "fetch_run", "open_store"]


def open_store(location: str | Path | Store) -> Store:
    """The store at a place: a folder, or an address such as s3://bucket/runs.

    >>> open_store("runs").where()
    'runs'
    >>> open_store("memory://bucket/runs").where()
    'memory://bucket/runs'
    """
    if isinstance(location, Store):
        return location
    return RemoteStore(str(location)) if "://" in str(location) else Store(location)


def fetch_run(location: str) -> Path:
    """The folder of a finished run, which may be at an address."""
    if "://" not in location:
        return Path(location)
    address, _, key = location.rstrip("/").rpartition("/")
    store = RemoteStore(address)
    store.fetch(key)
    return store.root / key


class RemoteStore(Store):
    """Records at an address. Any number of machines may read them at the same time."""

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        self.files, self.path = _file_system(self.address)
        # What is in the mirror, in which state.
        self._states: dict[Path, str] = {}
        super().__init__(Path(_mirror(self.address).name))

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteStore, (self.address,)

    def prepare(self) -> None:
        """Try to write, so that a place that cannot be written is known before any work."""
        try:
            self.files.makedirs(f"{self.path}/plans", exist_ok=True)
            trial = f"{self.path}/plans/{uuid.uuid4().hex}.part"
            self.files.pipe_file(trial, b"")
            self.files.rm_file(trial)
        except Exception as error:  # noqa: BLE001  every kind of address has errors of its own
            raise SpecError(f"cannot write to {self.address} ({error}); use --store") from None

    def known(self, runs: Sequence[Run]) -> list[Record | None]:
        """The records of many runs, after one look at all there are."""
        there = self.done()
        return [self.get(run) if run.key in there else None for run in runs]

    def where(self, run: Run | None = None) -> str:
        """The address, or where the files of a run lie there."""
        return f"{self.address}/{run.key}" if run else self.address

    def _look(self, pattern: str) -> list[Path]:
        with self._asked():
            found = self.files.glob(f"{self.path}/{pattern}", detail=True)
            states = {self._here(path): _state(info) for path, info in found.items()}
            changed = {
                path: here
                for path, here in zip(found, states, strict=True)
                if self._states.get(here) != states[here]
            }
            # Those that have gone meanwhile are left out.
            contents = self.files.cat(list(changed), on_error="omit") if changed else {}
        for path, content in contents.items():
            here = changed[path]
            with atomic_write(here) as temporary:
                temporary.write_bytes(content)
            self._states[here] = states[here]
        for path in set(self.root.glob(pattern)) - set(states):
            path.unlink(missing_ok=True)
        return sorted(path for path in states if path.exists())

    def _brought(self, path: Path) -> Path:
        with self._asked():
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

    def _sent(self, path: Path) -> None:
        """Send a file under another name, then rename it: it is whole or not there."""
        there = self._there(path)
        part = f"{there}.{uuid.uuid4().hex}.part"
        with self._asked("written"):
            self.files.makedirs(part.rpartition("/")[0], exist_ok=True)
            self.files.put_file(str(path), part)
            self.files.mv(part, there)

    def _forget(self, path: Path) -> None:
        super()._forget(path)
        # Another process may have done so meanwhile.
        with self._asked("written"), suppress(FileNotFoundError):
            if self.files.exists(self._there(path)):
                self.files.rm_file(self._there(path))

    def _there(self, path: Path) -> str:
        return f"{self.path}/{path.relative_to(self.root).as_posix()}"

    def _here(self, path: str) -> Path:
        return self.root.joinpath(*path.rsplit("/", 2)[-2:])

    @contextmanager
    def _asked(self, what: str = "read") -> Iterator[None]:
        try:
            yield
        except AfieldError:
            raise
        except Exception as error:  # noqa: BLE001  every kind of address has errors of its own
            raise DataError(f"{self.address}: cannot be {what} ({error})") from None


def _state(info: dict[str, Any]) -> str:
    """What changes when a file at an address does."""
    names = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "last_modified", "created", "size")
    return " ".join(str(info.get(name)) for name in names)


def _file_system(address: str) -> tuple[Any, str]:
    try:
        files, path = fsspec.core.url_to_fs(address)
    except (ImportError, ValueError, OSError) as error:
        raise SpecError(f"{address}: cannot be opened ({error})") from None
    return files, path.rstrip("/")


@lru_cache
def _mirror(address: str) -> "tempfile.TemporaryDirectory[str]":
    """One mirror of an address in a process, removed at its end."""
    del address
    return tempfile.TemporaryDirectory(prefix="afield-")
