"""Decode once: what files hold, as arrays on disk that are mapped into memory.

    AFIELD_CACHE/<name>-<digest>/    one entry: what one folder gives in one form
        state.json                   of which files (names, sizes, times) it was made
        *.npy                        the arrays

An entry is made in a folder beside it and then renamed: it is whole or not there. A lock lets one
process make it while others wait. It is made anew when the files change, in place of the old one.
Everything in the cache can be made again, so it may be deleted at any time.
"""

import errno
import glob
import hashlib
import json
import logging
import mmap
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from filelock import FileLock
from numpy.typing import NDArray
from torch import Tensor

from afield.compute import usable_cores
from afield.errors import DataError
from afield.files import atomic_write
from afield.progress import track

__all__ = ["DecodedFiles", "cache_arrays", "cache_root", "contents_digest", "decode_files"]

log = logging.getLogger(__name__)

# Part of every state: changed when the same files would give other arrays.
VERSION = 1
# Errors of the system and not of a file: what they stop can be tried again.
TRANSIENT_ERRNOS = (errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE, errno.EAGAIN)
# Linux's MAP_NORESERVE, which Python names from 3.13 on.
MAP_NORESERVE = 0x4000 if sys.platform == "linux" else 0
# Files that are given to the threads at once.
DECODE_AHEAD = 4096
# From here on the size of an entry is told before it is made.
LARGE_ENTRY_BYTES = 16 * 2**20
Arrays = dict[str, NDArray[Any]]


class DecodedFiles(NamedTuple):
    """One row for every file that could be read, in their order, and why others could not."""

    rows: Tensor
    broken: Mapping[Path, str]


def cache_root() -> Path:
    """Where decoded data are kept: ``AFIELD_CACHE``, or a folder in the user's home."""
    usual = Path.home() / ".cache" / "afield" / "decoded"
    return Path(os.environ.get("AFIELD_CACHE") or usual).expanduser()


def decode_files(
    root: Path,
    files: Sequence[Path],
    decode: Callable[[Path], NDArray[Any]],
    *,
    description: str,
    like: NDArray[Any],
    decode_errors: tuple[type[Exception], ...],
) -> DecodedFiles:
    """What `decode` makes of every file, mapped into memory.

    Parameters
    ----------
    root, files
        The folder, and the files in it, in the order of the rows.
    decode
        Gives an array for a file; called by several threads.
    form
        In words, what `decode` makes of a file: another form is another entry.
    like
        An array of the shape and type of a row.
    refused
        What `decode` raises for a file that is broken.
    """

    def build(folder: Path) -> None:
        shape = (len(files), *like.shape)
        rows = np.lib.format.open_memmap(folder / "rows.npy", "w+", like.dtype, shape)
        _reserve(folder / "rows.npy")

        def put(place: tuple[int, Path]) -> str:
            number, file = place
            try:
                rows[number] = decode(file)
            except decode_errors as error:
                if getattr(error, "errno", None) in TRANSIENT_ERRNOS:
                    raise DataError(f"{file}: {error}; try again") from None
                return (str(error).splitlines() or ["unreadable"])[0]
            return ""

        with ThreadPoolExecutor(usable_cores()) as threads:
            places = [*enumerate(files)]
            pieces = (
                places[start : start + DECODE_AHEAD]
                for start in range(0, len(places), DECODE_AHEAD)
            )
            outcomes = (outcome for piece in pieces for outcome in threads.map(put, piece))
            reasons = list(track(outcomes, f"decoding {root.name}", len(files)))
        _close_gaps(rows, [i for i, reason in enumerate(reasons) if not reason])
        rows.flush()
        broken = {str(files[i]): reason for i, reason in enumerate(reasons) if reason}
        (folder / "broken.json").write_text(json.dumps(broken), encoding="utf-8")

    needed = len(files) * like.nbytes
    with _entry(root, description, stat_digest(files), needed, build) as folder:
        broken = json.loads((folder / "broken.json").read_text(encoding="utf-8"))
        rows = _mapped(folder / "rows.npy")[: len(files) - len(broken)]
        return DecodedFiles(rows, {Path(file): reason for file, reason in broken.items()})


def cache_arrays(
    root: Path,
    files: Sequence[Path],
    make: Callable[[], Arrays],
    *,
    description: str,
    needed_bytes: int,
) -> dict[str, Tensor]:
    """The arrays that `make` gives for these files, mapped into memory.

    Parameters
    ----------
    root, files
        The folder, and the files in it of which the arrays are made.
    make
        Gives the arrays by name.
    form
        In words, what `make` makes of the files: another form is another entry.
    needed
        About how many bytes that will be.
    """

    def build(folder: Path) -> None:
        for name, array in make().items():
            np.save(folder / f"{name}.npy", array)

    with _entry(root, description, stat_digest(files), needed_bytes, build) as folder:
        return {path.stem: _mapped(path) for path in folder.glob("*.npy")}


def contents_digest(root: Path, files: Sequence[Path]) -> str:
    """A digest of the names and contents of files; they are read only when something changed."""

    def build(folder: Path) -> None:
        digest = hashlib.sha256()
        for file in track(files, f"reading {root.name}", len(files)):
            try:
                content = file.read_bytes()
            except OSError as error:
                content = f"unreadable: {error.strerror}".encode()
            digest.update(os.fsencode(file.relative_to(root)) + f" {len(content)} ".encode())
            digest.update(content)
        (folder / "contents.json").write_text(json.dumps(digest.hexdigest()[:16]))

    with _entry(root, "contents", stat_digest(files), 0, build) as folder:
        return str(json.loads((folder / "contents.json").read_text()))


def stat_digest(files: Sequence[Path]) -> str:
    """Changes when a file is added, removed, renamed, written to or made readable."""
    digest = hashlib.sha256(f"afield cache {VERSION}".encode())
    for file in files:
        try:
            found = file.stat()
        except OSError as error:
            raise DataError(f"{file}: cannot be read ({error.strerror})") from None
        # Not all names are Unicode: old archives have others.
        digest.update(os.fsencode(file))
        digest.update(f"\0{found.st_size}\0{found.st_mtime_ns}\0{found.st_mode}\n".encode())
    return digest.hexdigest()


@contextmanager
def _entry(
    root: Path, form: str, state: str, needed: int, build: Callable[[Path], None]
) -> Iterator[Path]:
    """The folder of an entry, made if there is none for this state, and kept from others' hands."""
    digest = hashlib.sha256(os.fsencode(root) + f"\0{form}".encode()).hexdigest()[:12]
    folder = cache_root() / f"{root.name[:40]}-{digest}"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder.with_name(f"{folder.name}.lock"))
        lock.acquire()
    except OSError as error:
        if _state_of(folder) == state:
            # A cache that others have filled may be read by all.
            yield folder
            return
        raise DataError(f"{folder.parent}: {error.strerror}; set AFIELD_CACHE to another") from None
    try:
        if _state_of(folder) != state:
            _make(folder, form, state, needed, build)
        yield folder
    finally:
        lock.release()


def _check_room(folder: Path, form: str, needed: int) -> None:
    free = shutil.disk_usage(folder.parent).free
    if needed > free:
        raise DataError(
            f"{folder.parent}: {form} takes {_told(needed)}, and {_told(free)} are free; set "
            "AFIELD_CACHE to a place with more room, or make --set size=... smaller"
        )
    if needed >= LARGE_ENTRY_BYTES:
        log.warning("%s: %s to be kept in %s", form, _told(needed), folder)


def _make(folder: Path, form: str, state: str, needed: int, build: Callable[[Path], None]) -> None:
    _check_room(folder, form, needed)
    _remove_leftovers(folder)
    try:
        with atomic_write(folder, durable=True) as temporary:
            temporary.mkdir()
            build(temporary)
            sizes = {file.name: file.stat().st_size for file in temporary.iterdir()}
            metadata = {"state": state, "form": form, "sizes": sizes}
            (temporary / "state.json").write_text(json.dumps(metadata))
    except DataError:
        raise
    except OSError as error:
        raise DataError(f"{folder}: {error}; set AFIELD_CACHE to another place") from None


def _remove_leftovers(folder: Path) -> None:
    """Remove what killed processes left, also those of other machines: this one has the lock."""
    for suffix in (".part", ".old"):
        for leftover in folder.parent.glob(f"{glob.escape(folder.name)}*{suffix}"):
            shutil.rmtree(leftover, ignore_errors=True)


def _reserve(path: Path) -> None:
    """Room on the disk for all of a file: a map that finds none later would end the process."""
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


def _close_gaps(rows: NDArray[Any], good: list[int]) -> None:
    """Move the good rows to the front, a few at a time: the array may be larger than memory."""
    if len(good) == len(rows):
        return
    for start in range(0, len(good), 256):
        chosen = good[start : start + 256]
        rows[start : start + len(chosen)] = rows[chosen]


def _state_of(folder: Path) -> str:
    """The state of which an entry was made; empty if there is none, or a part of it is gone."""
    try:
        told = json.loads((folder / "state.json").read_text())
        sizes = {name: (folder / name).stat().st_size for name in told["sizes"]}
        return str(told["state"]) if sizes == told["sizes"] else ""
    except (OSError, ValueError, KeyError):
        return ""


def _mapped(path: Path) -> Tensor:
    """An array on disk as a tensor; nobody's writing to it would reach the disk.

    Without a reserve: a private map is otherwise counted as memory, and refused beyond it.
    """
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    with path.open("rb") as file:
        if hasattr(mmap, "MAP_PRIVATE"):
            pages = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE | MAP_NORESERVE)
        else:
            pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    whole = np.frombuffer(pages, array.dtype, count=array.size, offset=array.offset)
    return torch.from_numpy(whole.reshape(array.shape))


def _told(size: int) -> str:
    return f"{size / 2**20:,.0f} MB" if size < 2**30 else f"{size / 2**30:,.1f} GB"
