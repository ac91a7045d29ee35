"""Cache of decoded files: arrays on disk that are mapped into memory.

    AFIELD_CACHE/<name>-<digest>/    one entry: a folder of files, decoded in one way
        state.json                   digest of the files' names, sizes and times
        *.npy                        the arrays

An entry is written atomically: it is complete or absent. One process writes it while others wait
for a lock. When the files change, a new entry replaces the old one. The cache may be deleted at any
time; it is then filled again.
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
from numpy.typing import NDArray
from torch import Tensor

from afield.compute import usable_cores
from afield.data.listing import file_status
from afield.errors import DataError
from afield.files import acquire_lock, atomic_write, check_regular_file, format_bytes
from afield.progress import track

log = logging.getLogger(__name__)

# Part of every state digest; increase it when the same files would give other arrays.
VERSION = 1
# Errors of the system, not of a file: trying again may help.
TRANSIENT_ERRNOS = (errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE, errno.EAGAIN)
# Linux's MAP_NORESERVE, which Python names from 3.13 on.
MAP_NORESERVE = 0x4000 if sys.platform == "linux" else 0
# Files that are queued for the decoding threads at once.
DECODE_AHEAD = 4096
# Entries of at least this size are announced in the log before they are written.
LARGE_ENTRY_BYTES = 16 * 2**20
Arrays = dict[str, NDArray[Any]]


class DecodedFiles(NamedTuple):
    """One row per readable file, in the order of the files, and why the others are broken."""

    rows: Tensor
    broken: Mapping[Path, str]


def cache_root() -> Path:
    """Folder of the cache: ``AFIELD_CACHE``, by default ``~/.cache/afield/decoded``."""
    default = Path.home() / ".cache" / "afield" / "decoded"
    return Path(os.environ.get("AFIELD_CACHE") or default).expanduser()


def decode_files(
    root: Path,
    files: Sequence[Path],
    decode: Callable[[Path], NDArray[Any]],
    *,
    description: str,
    like: NDArray[Any],
    decode_errors: tuple[type[Exception], ...],
    stated: Sequence[Path] | None = None,
) -> DecodedFiles:
    """Decode every file to one row of a tensor that is mapped into memory.

    Parameters
    ----------
    root, files
        The folder, and the files in it, in the order of the rows.
    decode
        Returns the array of a file; called in several threads.
    description
        Describes the decoded form. It is part of the key of the entry.
    like
        An array with the shape and dtype of a row.
    decode_errors
        Exceptions with which `decode` rejects a broken file.
    stated
        The files on disk, if `files` are names of samples within them.
    """

    def build(folder: Path) -> None:
        shape = (len(files), *like.shape)
        rows = np.lib.format.open_memmap(folder / "rows.npy", "w+", like.dtype, shape)
        _reserve(folder / "rows.npy")

        def write_row(item: tuple[int, Path]) -> str:
            """Returns why the file is broken; empty if it is not."""
            number, file = item
            try:
                rows[number] = decode(file)
            except decode_errors as error:
                if getattr(error, "errno", None) in TRANSIENT_ERRNOS:
                    raise DataError(f"{file}: {error}; try again") from None
                return (str(error).splitlines() or ["unreadable"])[0]
            return ""

        with ThreadPoolExecutor(usable_cores()) as threads:
            items, starts = list(enumerate(files)), range(0, len(files), DECODE_AHEAD)
            chunks = (items[start : start + DECODE_AHEAD] for start in starts)
            results = (reason for chunk in chunks for reason in threads.map(write_row, chunk))
            reasons = list(track(results, f"decoding {root.name}", len(files)))
        _close_gaps(rows, [i for i, reason in enumerate(reasons) if not reason])
        rows.flush()
        broken = {str(files[i]): reason for i, reason in enumerate(reasons) if reason}
        (folder / "broken.json").write_text(json.dumps(broken), encoding="utf-8")

    needed = len(files) * like.nbytes
    state = stat_digest(files if stated is None else stated)
    with _entry(root, description, state, needed, build) as folder:
        broken = json.loads((folder / "broken.json").read_text(encoding="utf-8"))
        rows = _map_tensor(folder / "rows.npy")[: len(files) - len(broken)]
        return DecodedFiles(rows, {Path(file): reason for file, reason in broken.items()})


def cache_arrays(
    root: Path,
    files: Sequence[Path],
    make: Callable[[], Arrays],
    *,
    description: str,
    needed_bytes: int,
) -> dict[str, Tensor]:
    """Arrays that `make` computes from these files, mapped into memory.

    Parameters
    ----------
    root, files
        The folder, and the files in it from which the arrays are computed.
    make
        Returns the arrays by name.
    description
        Describes the arrays. It is part of the key of the entry.
    needed_bytes
        Approximate size of the arrays on disk.
    """

    def build(folder: Path) -> None:
        for name, array in make().items():
            np.save(folder / f"{name}.npy", array)

    with _entry(root, description, stat_digest(files), needed_bytes, build) as folder:
        return {path.stem: _map_tensor(path) for path in folder.glob("*.npy")}


def contents_digest(root: Path, files: Sequence[Path]) -> str:
    """Digest of the names and contents of files, which are read only after a change."""

    def build(folder: Path) -> None:
        digest = hashlib.sha256()
        for file in track(files, f"reading {root.name}", len(files)):
            try:
                check_regular_file(file)
                content = file.read_bytes()
            except OSError as error:
                content = f"unreadable: {error.strerror}".encode()
            digest.update(os.fsencode(file.relative_to(root)) + f" {len(content)} ".encode())
            digest.update(content)
        (folder / "contents.json").write_text(json.dumps(digest.hexdigest()[:16]))

    with _entry(root, "contents", stat_digest(files), 0, build) as folder:
        return str(json.loads((folder / "contents.json").read_text()))


def stat_digest(files: Sequence[Path]) -> str:
    """Digest of names, sizes, times and permissions; it changes whenever the files do."""
    digest = hashlib.sha256(f"afield cache {VERSION}".encode())
    for file in files:
        try:
            status = file_status(file)
        except OSError as error:
            raise DataError(f"{file}: cannot be read ({error.strerror})") from None
        # fsencode: names from old archives may not be valid Unicode.
        digest.update(os.fsencode(file))
        digest.update(status)
    return digest.hexdigest()


@contextmanager
def _entry(
    root: Path, description: str, state: str, needed: int, build: Callable[[Path], None]
) -> Iterator[Path]:
    """Yield the folder of an entry, locked; write it first if there is none for this state."""
    digest = hashlib.sha256(os.fsencode(root) + f"\0{description}".encode()).hexdigest()[:12]
    folder = cache_root() / f"{root.name[:40]}-{digest}"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = acquire_lock(folder.with_name(f"{folder.name}.lock"))
    except OSError as error:
        if _read_state(folder) == state:
            # The cache is read-only, but another user has filled it.
            yield folder
            return
        raise DataError(
            f"{folder.parent}: {error.strerror}; set AFIELD_CACHE to another folder"
        ) from None
    try:
        if _read_state(folder) != state:
            _check_space(folder, root.name, needed)
            _write_entry(folder, description, state, build)
        yield folder
    finally:
        lock.release()


def _check_space(folder: Path, name: str, needed: int) -> None:
    free = shutil.disk_usage(folder.parent).free
    if needed > free:
        sizes = f"needs {format_bytes(needed)}, but only {format_bytes(free)} are free"
        raise DataError(
            f"{folder.parent}: the cache of {name} {sizes}; set AFIELD_CACHE to a folder "
            "with more space, or use a smaller --set size=..."
        )
    if needed >= LARGE_ENTRY_BYTES:
        log.warning("%s: caching %s of decoded samples in %s", name, format_bytes(needed), folder)


def _write_entry(folder: Path, description: str, state: str, build: Callable[[Path], None]) -> None:
    _remove_leftovers(folder)
    try:
        with atomic_write(folder, durable=True, folder=True) as temporary:
            build(temporary)
            sizes = {file.name: file.stat().st_size for file in temporary.iterdir()}
            metadata = {"state": state, "form": description, "sizes": sizes}
            (temporary / "state.json").write_text(json.dumps(metadata))
    except DataError:
        raise
    except OSError as error:
        raise DataError(
            f"{folder}: {error.strerror or error}; set AFIELD_CACHE to another folder"
        ) from None


def _remove_leftovers(folder: Path) -> None:
    """Remove what killed processes left, on any machine: only the holder of the lock writes."""
    for suffix in (".part", ".old"):
        for leftover in folder.parent.glob(f"{glob.escape(folder.name)}*{suffix}"):
            shutil.rmtree(leftover, ignore_errors=True)


def _reserve(path: Path) -> None:
    """Allocate a file's blocks: writing to a map on a full disk would kill the process."""
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


def _close_gaps(rows: NDArray[Any], good: list[int]) -> None:
    """Move the good rows to the front, in chunks: the array may be larger than memory."""
    if len(good) == len(rows):
        return
    for start in range(0, len(good), 256):
        chunk = good[start : start + 256]
        rows[start : start + len(chunk)] = rows[chunk]


def _read_state(folder: Path) -> str:
    """State digest of an entry; empty if the entry is absent or incomplete."""
    try:
        metadata = json.loads((folder / "state.json").read_text())
        sizes = {name: (folder / name).stat().st_size for name in metadata["sizes"]}
        return str(metadata["state"]) if sizes == metadata["sizes"] else ""
    except (OSError, ValueError, KeyError):
        return ""


def _map_tensor(path: Path) -> Tensor:
    """Map an array on disk to a tensor, copy-on-write: writing to it never reaches the disk.

    MAP_NORESERVE: the system would otherwise count a private map as memory, and refuse one that is
    larger than the memory.
    """
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    with path.open("rb") as file:
        if hasattr(mmap, "MAP_PRIVATE"):
            pages = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE | MAP_NORESERVE)
        else:
            pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    values = np.frombuffer(pages, array.dtype, count=array.size, offset=array.offset)
    return torch.from_numpy(values.reshape(array.shape))
