"""Atomic writes, digests, checks of files, and small JSON files.

A file or folder is written under a temporary name beside its target and then renamed, so it is
complete or absent. The next write to the same target removes what a killed process left behind.
"""

import ctypes
import errno
import glob
import hashlib
import json
import os
import shutil
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from afield.compute import hostname, is_alive
from afield.errors import DataError

# Linux: relative to the working directory, and the flag of renameat2 that swaps two paths.
AT_FDCWD, RENAME_EXCHANGE = -100, 2
# A spreadsheet takes a cell of a CSV file that starts with one of these for a formula.
FORMULA_PREFIXES = ("=", "+", "-", "@", "\t", "\r")
# A larger file is taken for a mistake where a small JSON file is expected.
MAX_JSON_BYTES = 2**20
MARKDOWN_ESCAPES = str.maketrans({"|": r"\|", "<": "&lt;", ">": "&gt;", "[": r"\[", "`": r"\`"})


@contextmanager
def atomic_write(path: Path, *, durable: bool = False, parents: bool = True) -> Iterator[Path]:
    """Yield a temporary path; rename it to `path` on success, delete it on error.

    The caller creates a file or a folder at the temporary path. An existing folder at `path` is
    kept until the new one is complete.

    Parameters
    ----------
    path
        The file or folder to write.
    durable
        Flush the contents to disk before the rename, so that they also survive a power failure.
    parents
        Create missing parent folders, and delete them again on error.
    """
    writer = _writer_name()
    temporary = path.with_name(f"{path.name}.{writer}.part")
    new_folders = []
    if parents:
        new_folders = [folder for folder in path.absolute().parents if not folder.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
    restore_folder(path)
    _remove_leftovers(path, ".part")
    try:
        yield temporary
        if durable:
            flush_to_disk(temporary)
        _rename(temporary, path, path.with_name(f"{path.name}.{writer}.old"))
    except BaseException as error:
        _remove(temporary)
        if isinstance(error, OSError) and error.errno and error.filename is None:
            error.filename = str(path)
        with suppress(OSError):  # another process may have written into them
            for folder in new_folders:
                folder.rmdir()
        raise
    _remove_leftovers(path, ".old")


def format_bytes(size: float) -> str:
    """A number of bytes in a unit that suits it.

    >>> format_bytes(3 * 2**20)
    '3.0 MB'
    """
    units = ("bytes", "kB", "MB", "GB")
    power = min(len(units) - 1, max(0, int(size).bit_length() - 1) // 10)
    return f"{size / 1024**power:,.{min(power, 1)}f} {units[power]}"


def flush_to_disk(path: Path) -> None:
    """Flush a file, or all files of a folder, from the caches of the system to the disk."""
    files = [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]
    for file in files:
        with file.open("rb+") as opened:
            os.fsync(opened.fileno())


def check_regular_file(path: Path) -> None:
    """Raise an OSError if a path is a pipe, device or socket, whose reading may never end."""
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))


def escape_markdown(text: str) -> str:
    """Make a name one line of Markdown without HTML, links and borders of tables.

    >>> escape_markdown("<script>")
    '&lt;script&gt;'
    """
    return " ".join(text.split()).translate(MARKDOWN_ESCAPES)


def guard_formula(cell: Any) -> Any:
    """Quote a text that a spreadsheet would run as a formula; other values stay as they are.

    >>> guard_formula("=1+1")
    "'=1+1"
    """
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA_PREFIXES) else cell


def sha256(path: Path) -> str:
    """SHA-256 of a file's contents, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_digest(path: str | Path) -> str:
    """Short digest of a file's contents; a file that did not change is read only once."""
    file = Path(path).expanduser()
    try:
        check_regular_file(file)
        state = file.stat()
        return _cached_digest(file, state.st_size, state.st_mtime_ns)
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror})") from None


@lru_cache(maxsize=8)
def _cached_digest(file: Path, size: int, modified: int) -> str:
    del size, modified
    return sha256(file)[:16]


def read_json_object(path: Path) -> dict[str, Any]:
    """The object in a small JSON file; raises DataError if there is none."""
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise DataError(f"{path}: too large for JSON of this kind")
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: not readable JSON ({error})") from None
    if not isinstance(content, dict):
        raise DataError(f"{path}: not a JSON object")
    return content


def remove_abandoned(folder: Path) -> None:
    """Remove the temporary files in a folder whose writers no longer exist."""
    for suffix in (".part", ".old"):
        for leftover in folder.glob(f"*{suffix}"):
            if _is_abandoned(_writer_of(leftover)):
                _remove(leftover)


def unwritable_reason(folder: Path) -> str:
    """Why a folder cannot be written to: a read-only file system, or missing permission."""
    if os.name == "posix" and os.statvfs(folder).f_flag & os.ST_RDONLY:
        return os.strerror(errno.EROFS)
    return os.strerror(errno.EACCES)


def _writer_name() -> str:
    """The number of this process and, in other threads than the main one, of the thread."""
    if threading.current_thread() is threading.main_thread():
        return str(os.getpid())
    return f"{os.getpid()}-{threading.get_native_id()}"


def _rename(temporary: Path, path: Path, old: Path) -> None:
    if not (temporary.is_dir() and path.is_dir()):
        temporary.replace(path)
        return
    # A folder cannot be renamed to one that is not empty.
    if _exchange(temporary, path):
        _remove(temporary)
        return
    path.rename(old)
    try:
        temporary.rename(path)
    except OSError:
        old.rename(path)
        raise
    _remove(old)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two paths in one step, on Linux; return whether that was possible."""
    with suppress(OSError, AttributeError):
        paths = os.fsencode(one), os.fsencode(other)
        rename = ctypes.CDLL(None).renameat2
        return bool(rename(AT_FDCWD, paths[0], AT_FDCWD, paths[1], RENAME_EXCHANGE) == 0)
    return False


def restore_folder(path: Path) -> None:
    """Rename a folder back whose replacement was interrupted between two renames."""
    if path.exists() or path.is_symlink():
        return
    for old in _leftovers(path, ".old"):
        if old.is_dir():
            with suppress(OSError):
                old.rename(path)
            return


def _remove_leftovers(path: Path, suffix: str) -> None:
    """Remove temporary files and folders of writers that no longer exist."""
    for leftover in _leftovers(path, suffix):
        _remove(leftover)


def _leftovers(path: Path, suffix: str) -> Iterator[Path]:
    """Temporary files and folders beside a path whose writers no longer exist."""
    for leftover in path.parent.glob(f"{glob.escape(path.name)}.*{suffix}"):
        writer = _writer_of(leftover)
        if leftover.name == f"{path.name}.{writer}{suffix}" and _is_abandoned(writer):
            yield leftover


def _writer_of(temporary: Path) -> str:
    """The name of the writer of a temporary file or folder, such as x.1234.part or x.1234.old."""
    return temporary.with_suffix("").suffix.removeprefix(".")


def _is_abandoned(writer: str) -> bool:
    """Whether this writer's process has ended; its number may since have become ours."""
    if writer == _writer_name():
        return True
    process = writer.partition("-")[0]
    return process.isdecimal() and is_alive(hostname(), int(process)) is False


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink(missing_ok=True)
