"""Folders listed once: one scan of a folder and one stat per file.

A benchmark asks for its dataset several times: to plan, to check and for every run. On a network
disk, listing a million files takes minutes. Inside `listed_once`, and in the workers of a
benchmark, a folder is listed once; outside, every question looks at the disk.
"""

import errno
import os
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from afield import registry
from afield.errors import AfieldError, DataError, UnknownNameError

T = TypeVar("T")

_numbers = count(1)
# Names the listings that this process remembers; empty if it remembers none.
_current = ""
_remembered: dict[Hashable, Any] = {}
_statuses: dict[Path, bytes] = {}

# What the name of a repository on the Hugging Face hub begins with.
HUB_PREFIX = "hf:"


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or folder in a folder; `is_other` is a broken link, pipe, device or socket."""

    path: Path
    is_folder: bool
    is_other: bool


@contextmanager
def listed_once() -> Iterator[None]:
    """Remember listings inside the block. An inner block shares those of the outer one."""
    outer = _current
    join_listing(outer or f"{os.getpid()}-{next(_numbers)}")
    try:
        yield
    finally:
        join_listing(outer)


def current_listing() -> str:
    """The name of the remembered listings, for the workers of a benchmark."""
    return _current


def join_listing(name: str) -> None:
    """Remember listings under this name, and forget those of another; empty remembers none."""
    global _current  # noqa: PLW0603  the memory of a process
    if name != _current:
        _remembered.clear()
        _statuses.clear()
        _current = name


def once(key: Hashable, build: Callable[[], T]) -> T:
    """What `build` returns, remembered inside `listed_once`."""
    if not _current:
        return build()
    if key not in _remembered:
        _remembered[key] = build()
    result: T = _remembered[key]
    return result


def scan_folder(path: Path) -> list[Entry]:
    """Everything in a folder, in the order of the names; raises OSError."""
    return once(("folder", path), lambda: _scan(path))


def _scan(path: Path) -> list[Entry]:
    entries = []
    # Such a folder can be listed, but its files cannot be read.
    effective = os.access in os.supports_effective_ids
    if not os.access(path, os.X_OK, effective_ids=effective) and path.exists():
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    with os.scandir(path) as found:
        for each in sorted(found, key=lambda entry: entry.name):
            child = path / each.name
            is_folder, is_file = _kind(each)
            if is_file and _current:
                _statuses[child] = _digestible(each.stat())
            entries.append(Entry(child, is_folder, not is_folder and not is_file))
    return entries


def _kind(entry: "os.DirEntry[str]") -> tuple[bool, bool]:
    """Whether it is a folder, and whether it is a file; neither if a link leads to itself."""
    try:
        return entry.is_dir(), entry.is_file()
    except OSError:
        return False, False


def file_status(path: Path) -> bytes:
    """Size, time and permissions of a file as text; raises OSError."""
    return _statuses.get(path) or _digestible(path.stat())


def _digestible(status: os.stat_result) -> bytes:
    return f"\0{status.st_size}\0{status.st_mtime_ns}\0{status.st_mode}\n".encode()


def dataset_path(name: str) -> Path | None:
    """The file or folder of this name; None if there is none. The suffix .npz may be missing."""
    try:
        path = Path(name).expanduser()
        if name and not path.exists() and path.with_name(f"{path.name}.npz").exists():
            path = path.with_name(f"{path.name}.npz")
        return path if name and path.exists() else None
    except (OSError, RuntimeError, ValueError) as error:
        raise DataError(f"no file or folder {name!r} ({error})") from None


def unknown_dataset(name: str) -> AfieldError:
    """The error about a name that is neither a dataset nor a path, with a guess."""
    if "/" not in name and "." not in name:
        advice = registry.hint(name, registry.names("datasets"))
        return UnknownNameError(f"no dataset, file or folder is called {name!r}; {advice}")
    guess = similar_path(Path(name).expanduser())
    if guess is not None:
        return DataError(f"no file or folder {name}; did you mean {guess}?")
    return DataError(
        f"no file or folder {name}; give a folder root/<domain>/<class>/<file>, an .npz file, "
        "or a table (.csv, .parquet, .jsonl)"
    )


def check_dataset_exists(spec: str) -> None:
    """Raise an error unless this is the name of a dataset, or the path of a file or folder."""
    if spec in registry.names("datasets"):
        return
    # The columns of a table may be named after a question mark.
    name = spec if dataset_path(spec) else spec.partition("?")[0]
    if dataset_path(name) is None:
        raise unknown_dataset(name)


def similar_path(path: Path) -> Path | None:
    """A file or folder beside the missing one with a similar name, in any case."""
    try:
        names = {child.name.lower(): child.name for child in path.parent.iterdir()}
    except OSError:
        return None
    close = get_close_matches(path.name.lower(), names, n=1)
    return path.with_name(names[close[0]]) if close else None
