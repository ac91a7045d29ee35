"""Atomic writes, digests, checks of files, locks, and small JSON files.

A file or folder is written under a temporary name beside its target and then renamed, so it is
complete or absent. The next write to the same target removes what a killed process left behind.

A temporary name has the machine, the namespace of process numbers, the process and a random token:
``x.a1b2c3-4026531836-1234-9f8e7d6c.part``. Whether its writer still lives is known for processes of
the same namespace. In other namespaces of the same machine (containers) a lock tells, and on other
machines only the age.
"""

import ctypes
import errno
import fcntl
import glob
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from filelock import FileLock

from afield.compute import hostname, is_alive
from afield.errors import DataError, SpecError

# Linux: relative to the working directory, and the flag of renameat2 that swaps two paths.
AT_FDCWD, RENAME_EXCHANGE = -100, 2
# A spreadsheet takes a cell of a CSV file that starts with one of these for a formula.
FORMULA_PREFIXES = ("=", "+", "-", "@", "\t", "\r")
# A larger file is taken for a mistake where a small JSON file is expected.
MAX_JSON_BYTES = 2**20
MAX_TEXT_BYTES = 256 * 2**20
# A temporary file of another machine that did not change for this long has no writer any more.
ABANDONED_SECONDS = 24 * 3600.0
WRITER = re.compile(r"(?P<machine>[0-9a-f]{6})-(?P<space>\d+)-(?P<process>\d+)-[0-9a-f]{8}")
# In other containers, a younger file may be one whose writer has yet to lock it.
UNLOCKED_SECONDS = 10.0
OPEN_FILES = re.compile(r"/dev/(stdout|stderr|fd/\d+)|/proc/[^/]+/fd/\d+")
# Longer names are shortened in temporary names: file systems allow 255 bytes.
MAX_STEM_BYTES = 180
# A lock that is held by another process; any other error means that there are no locks.
HELD = (errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES)
# Characters that a terminal takes for commands; all of them but the newline.
CONTROL_CHARACTERS = dict.fromkeys(
    (*range(10), *range(11, 32), *range(127, 160)), "\N{REPLACEMENT CHARACTER}"
)
ESCAPED = {*CONTROL_CHARACTERS} - {ord("\t")}
MARKDOWN_ESCAPES = str.maketrans({"|": r"\|", "<": "&lt;", ">": "&gt;", "[": r"\[", "`": r"\`"})


@contextmanager
def atomic_write(
    path: Path, *, durable: bool = False, parents: bool = True, folder: bool = False
) -> Iterator[Path]:
    """Yield a temporary path; rename it to `path` on success, delete it on error.

    The caller writes to the temporary path, which is an empty file or folder. An existing folder at
    `path` is kept until the new one is complete. A device or pipe at `path` stays what it is: the
    complete contents are written into it.

    Parameters
    ----------
    path
        The file or folder to write.
    durable
        Flush the contents to disk before the rename, so that they also survive a power failure.
    parents
        Create missing parent folders, and delete them again on error.
    folder
        Whether a folder is written.
    """
    if is_stream(path):
        with _stream_write(path) as temporary:
            yield temporary
        return
    writer = _writer_name()
    temporary = _temporary(path, writer, ".part")
    new_folders = []
    if parents:
        new_folders = [parent for parent in path.absolute().parents if not parent.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
    restore_folder(path)
    _remove_leftovers(path, ".part")
    try:
        with _locked_temporary(temporary, folder=folder):
            yield temporary
            if durable:
                flush_to_disk(temporary)
            _rename(temporary, path, _temporary(path, writer, ".old"))
    except BaseException as error:
        _remove(temporary)
        if isinstance(error, OSError) and error.errno and error.filename is None:
            error.filename = str(path)
        with suppress(OSError):  # another process may have written into them
            for parent in new_folders:
                parent.rmdir()
        raise
    _remove_leftovers(path, ".old")


def is_stream(path: Path) -> bool:
    """Whether what is written to a path goes elsewhere: a pipe, a character device, /dev/stdout."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        return True
    # These lead to the file to which the output is redirected.
    return bool(OPEN_FILES.fullmatch(str(path.absolute())))


@contextmanager
def _stream_write(path: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="afield-") as folder:
        temporary = Path(folder) / path.name
        temporary.touch()
        yield temporary
        with temporary.open("rb") as source, path.open("wb") as target:
            shutil.copyfileobj(source, target)


def check_output(path: Path, *, overwrite: bool = False) -> None:
    """Raise before any work if a file cannot be written there, or something would be lost."""
    if path.name in ("", ".."):
        raise SpecError(f"{path}: not the name of a file; give a file to write")
    if path.is_dir():
        raise SpecError(f"{path}: is a folder; give a file to write")
    if is_stream(path):
        return
    if path.exists() and not path.is_file():
        raise SpecError(f"{path}: is a disk or a socket; give a file to write")
    if (path.exists() or path.is_symlink()) and not overwrite:
        raise SpecError(f"{path}: exists already; give another name, or --force to replace it")
    existing = next(parent for parent in path.absolute().parents if parent.exists())
    if not existing.is_dir():
        raise SpecError(f"{path}: cannot be written ({existing.name} is a file); give another name")
    if not os.access(existing, os.W_OK):
        reason = unwritable_reason(existing)
        raise SpecError(f"{path}: cannot be written ({reason}); give another name")


def acquire_lock(path: Path, *, wait: bool = True) -> FileLock:
    """Lock a file for this process; the operating system releases the lock if the process dies.

    Raises filelock.Timeout if another process holds the lock and `wait` is false, and OSError if
    the file system refuses locks.
    """
    check_locks(path)
    lock = FileLock(path)
    lock.acquire(timeout=-1 if wait else 0)
    return lock


def check_locks(path: Path) -> None:
    """Raise an OSError if the file system of a file refuses to lock it; other errors as well."""
    number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, 0o644)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in HELD:
            reason = f"the file system refuses locks: {os.strerror(error.errno or errno.EIO)}"
            raise OSError(error.errno, reason, str(path)) from None
    finally:
        os.close(number)


def format_bytes(size: float) -> str:
    """A number of bytes in a unit that suits it.

    >>> format_bytes(3 * 2**20)
    '3.0 MB'
    """
    units = ("bytes", "kB", "MB", "GB")
    power = min(len(units) - 1, max(0, int(size).bit_length() - 1) // 10)
    return f"{size / 1024**power:,.{min(power, 1)}f} {units[power]}"


def parse_size(text: str, *, option: str) -> int:
    """A number of bytes from the text of an option, such as 5GB.

    >>> parse_size("1.5MB", option="shards")
    1500000
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMG]?)B?\s*", text.upper())
    if not match or float(match[1]) <= 0:
        raise SpecError(f"{option}={text}: give a size such as 5GB")
    return max(1, int(float(match[1]) * 1000 ** " KMG".index(match[2] or " ")))


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


def read_text(path: Path, *, encoding: str = "utf-8") -> str:
    """The text of a file that a person names or a folder contains.

    Raises an OSError for a pipe or device, whose reading may never end, and for a file that is far
    too large to be read at once.
    """
    check_regular_file(path)
    if path.stat().st_size > MAX_TEXT_BYTES:
        raise OSError(errno.EFBIG, "too large for a file of this kind", str(path))
    return path.read_text(encoding=encoding)


def escape_markdown(text: str) -> str:
    """Make a name one line of Markdown without HTML, links, borders of tables and controls.

    >>> escape_markdown("<script>")
    '&lt;script&gt;'
    """
    return " ".join(text.split()).translate(CONTROL_CHARACTERS).translate(MARKDOWN_ESCAPES)


def escape_controls(text: str) -> str:
    r"""Write control characters with a backslash, so that a terminal only shows them.

    >>> escape_controls("a\x1b[2J")
    'a\\x1b[2J'
    """
    return "".join(f"\\x{ord(c):02x}" if ord(c) in ESCAPED else c for c in text)


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
        content = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: not readable JSON ({error})") from None
    if not isinstance(content, dict):
        raise DataError(f"{path}: not a JSON object")
    return content


def remove_abandoned(folder: Path) -> None:
    """Remove the temporary files in a folder whose writers no longer exist."""
    for suffix in (".part", ".old"):
        for leftover in folder.glob(f"*{suffix}"):
            if _is_abandoned(leftover):
                _remove(leftover)


def unwritable_reason(folder: Path) -> str:
    """Why a folder cannot be written to: a read-only file system, or missing permission."""
    if os.name == "posix" and os.statvfs(folder).f_flag & os.ST_RDONLY:
        return os.strerror(errno.EROFS)
    return os.strerror(errno.EACCES)


def _writer_name() -> str:
    """Machine, namespace of process numbers, process, and a token for this write."""
    return f"{_machine()}-{_namespace()}-{os.getpid()}-{secrets.token_hex(4)}"


@lru_cache(maxsize=1)
def _machine() -> str:
    """Short digest of this machine since it was started; containers on it have the same."""
    try:
        identity = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    except OSError:
        identity = hostname()
    return hashlib.sha256(identity.encode()).hexdigest()[:6]


def _namespace() -> int:
    """Number of the namespace in which this process has its number; 0 if there is only one."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0


def _temporary(path: Path, writer: str, suffix: str) -> Path:
    return path.with_name(f"{_stem(path)}.{writer}{suffix}")


def _stem(path: Path) -> str:
    """The name of a path, or the start and a digest of a long one."""
    name = os.fsencode(path.name)
    if len(name) <= MAX_STEM_BYTES:
        return path.name
    start = name[: MAX_STEM_BYTES // 2].decode(errors="ignore")
    return f"{start}-{hashlib.sha256(name).hexdigest()[:12]}"


@contextmanager
def _locked_temporary(temporary: Path, *, folder: bool) -> Iterator[None]:
    """Create the temporary file or folder and lock it, if the file system allows that."""
    if folder:
        temporary.mkdir()
    else:
        temporary.touch(exist_ok=False)
    with ExitStack() as stack:
        with suppress(OSError):
            number = os.open(temporary, os.O_RDONLY)
            stack.callback(os.close, number)
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


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
    for leftover in path.parent.glob(f"{glob.escape(_stem(path))}.*{suffix}"):
        writer = leftover.name.removeprefix(f"{_stem(path)}.").removesuffix(suffix)
        if "." not in writer and _is_abandoned(leftover):
            yield leftover


def _is_abandoned(temporary: Path) -> bool:
    """Whether the writer of a temporary file or folder has ended."""
    writer = WRITER.fullmatch(temporary.with_suffix("").suffix.removeprefix("."))
    age = time.time() - _last_change(temporary)
    if writer and writer["machine"] == _machine():
        if int(writer["space"]) == _namespace():
            return is_alive(hostname(), int(writer["process"])) is False
        # Another container: its processes cannot be seen, but their locks can.
        if age > UNLOCKED_SECONDS and (locked := _is_locked(temporary)) is not None:
            return not locked
    return age > ABANDONED_SECONDS


def _is_locked(path: Path) -> bool | None:
    """Whether a process of this machine holds a lock; None if there are no locks."""
    try:
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return True if error.errno in HELD else None
    finally:
        os.close(number)
    return False


def _last_change(path: Path) -> float:
    """When a file, or the newest file of a folder, was changed; now if that is unknown."""
    try:
        return max(each.lstat().st_mtime for each in (path, *path.rglob("*")))
    except OSError:
        return time.time()


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink(missing_ok=True)
