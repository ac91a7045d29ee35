"""A store at an address (s3://, gs://, or any other that fsspec knows), for many machines.

Every process mirrors the store in a temporary folder. It downloads a file before reading it, and
uploads a file after writing it, the record last; all other code works with local files.

Object stores have no locks. Two sweeps that use one address at the same time may do a run twice,
with the same result. Within one sweep this does not happen, on any number of machines.
"""

import tempfile
import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from afield.errors import AfieldError, DataError, SpecError
from afield.files import atomic_write
from afield.runs.record import Record, Run
from afield.runs.store.folder import Store

__all__ = ["RemoteStore", "fetch_run", "open_store"]


def open_store(location: str | Path | Store) -> Store:
    """The store at a location: a folder, or an address such as s3://bucket/runs.

    >>> open_store("runs").where()
    'runs'
    >>> open_store("memory://bucket/runs").where()
    'memory://bucket/runs'
    """
    if isinstance(location, Store):
        return location
    if not str(location).strip():
        raise SpecError("the name of the store is empty; give a folder or an address")
    return RemoteStore(str(location)) if "://" in str(location) else Store(location)


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

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        self.files, self.path = _file_system(self.address)
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
