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
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

__all__ = ["Entry", "current_listing", "join_listing", "listed_once", "once", "scan_folder"]
__all__ += ["file_status"]

T = TypeVar("T")

_numbers = count(1)
# Names the listings that this process remembers; empty if it remembers none.
_current = ""
_remembered: dict[Hashable, Any] = {}
_statuses: dict[Path, bytes] = {}


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
