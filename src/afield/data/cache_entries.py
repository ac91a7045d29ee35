"""What the cache holds, entry by entry, and how entries are removed.

Only what afield has written there is listed or removed; other files in the folder stay. An entry
that another process uses at the moment stays as well.
"""

import json
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from filelock import Timeout

from afield.data.cache import cache_root
from afield.files import acquire_lock

SECONDS_PER_DAY = 86400
# Features that are being computed are written every ten seconds.
ABANDONED_SECONDS = 120
DECODED = re.compile(r"(?P<name>.+)-[0-9a-f]{12}")
UNFINISHED = re.compile(r"embedding-[0-9a-f]{16}")
# The folder with the features of single samples, by network.
SAMPLES = "feature-samples"


@dataclass(frozen=True)
class Entry:
    """One entry of the cache: decoded files, features, or features that are not finished."""

    path: Path
    dataset: str
    content: str
    size: int
    used: float
    # Whether there are newer features of the same folder with the same network.
    outdated: bool = False


def cache_entries() -> list[Entry]:
    """All entries of the cache, the largest first."""
    root = cache_root()
    if not root.is_dir():
        return []
    found = [*_decoded(root), *_samples(root), *_mark_outdated(list(_features(root)))]
    return sorted(found, key=lambda entry: (-entry.size, str(entry.path)))


def choose_entries(
    entries: Sequence[Entry],
    *,
    dataset: str = "",
    older_than: float = 0.0,
    outdated: bool = False,
    keep: int | None = None,
) -> list[Entry]:
    """The entries that have all of these properties.

    Parameters
    ----------
    dataset
        Name of the dataset; empty means any.
    older_than
        Least number of days since the entry was last used.
    outdated
        Whether to choose only features of an earlier version of a folder.
    keep
        Bytes that may stay. Outdated features are chosen first, then what has not been used for the
        longest time, until the other entries are not larger.
    """
    latest = time.time() - older_than * SECONDS_PER_DAY
    chosen = [
        entry
        for entry in entries
        if dataset in ("", entry.dataset)
        and (entry.used <= latest or not older_than)
        and (entry.outdated or not outdated)
    ]
    if keep is None:
        return chosen
    left = sum(entry.size for entry in entries)
    first: list[Entry] = []
    for entry in sorted(chosen, key=lambda entry: (not entry.outdated, entry.used)):
        if left <= keep:
            break
        first.append(entry)
        left -= entry.size
    return first


def remove_entries(entries: Iterable[Entry]) -> list[Entry]:
    """Remove entries; return those that another process uses, which stay."""
    return [entry for entry in entries if not _remove(entry)]


def _remove(entry: Entry) -> bool:
    with _unused(entry.path) as unused:
        if unused and entry.path.is_dir():
            shutil.rmtree(entry.path)
    return unused


@contextmanager
def _unused(path: Path) -> Iterator[bool]:
    """Hold the lock of an entry, if it has one; yields whether nobody else uses the entry."""
    if UNFINISHED.fullmatch(path.name):
        yield time.time() - _used(path) > ABANDONED_SECONDS
        return
    lock_file = path.with_name(f"{path.name}.lock")
    if not lock_file.exists():
        yield True
        return
    try:
        lock = acquire_lock(lock_file, wait=False)
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def _decoded(root: Path) -> Iterator[Entry]:
    """Decoded files, and pieces of features that are not finished."""
    for folder in root.iterdir():
        if folder.is_symlink() or not folder.is_dir():
            continue
        if UNFINISHED.fullmatch(folder.name):
            yield Entry(folder, "", "unfinished features", _size(folder), _used(folder))
        elif match := DECODED.fullmatch(folder.name):
            with suppress(OSError, ValueError, KeyError, TypeError):
                form = json.loads((folder / "state.json").read_text())["form"]
                content = "checksums" if form == "contents" else "decoded files"
                yield Entry(folder, match["name"], content, _size(folder), _used(folder))


def _samples(root: Path) -> Iterator[Entry]:
    """Features of single samples, in a folder for each network, size and version of torch.

    A process that loses them only computes them again the next time.
    """
    for folder in root.glob(f"{SAMPLES}/*"):
        if folder.is_dir() and not folder.is_symlink():
            yield Entry(folder, "", "features by sample", _size(folder), _used(folder))


def _features(root: Path) -> Iterator[Entry]:
    """Finished features, each in a folder of its own."""
    for path in root.glob("features/*/*.npz"):
        content = f"features of {_network(path)}"
        yield Entry(path.parent, path.stem, content, _size(path.parent), _used(path.parent))


def _network(path: Path) -> str:
    """The network that made features, with the size of its images."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            made = json.loads(str(archive["provenance"]))
        return f"{made['backbone']} at {made['size']} px" if made.get("size") else made["backbone"]
    except (OSError, ValueError, KeyError, TypeError, EOFError):
        return "an unknown network"


def _mark_outdated(features: Sequence[Entry]) -> list[Entry]:
    newest: dict[tuple[str, str], float] = {}
    for entry in features:
        kind = (entry.dataset, entry.content)
        newest[kind] = max(newest.get(kind, 0.0), entry.used)
    return [
        replace(entry, outdated=entry.used < newest[entry.dataset, entry.content])
        for entry in features
    ]


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _used(path: Path) -> float:
    """When an entry was last read or written: locking it changes the time of its lock."""
    times = [path.stat().st_mtime]
    with suppress(OSError):
        times.append(path.with_name(f"{path.name}.lock").stat().st_mtime)
    return max(times)
