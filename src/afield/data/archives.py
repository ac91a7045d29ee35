"""Unpack archives completely or not at all, and never outside the target folder.

An archive is unpacked into a hidden folder beside the target and moved at the end. The same rules
hold for all formats and versions of Python, and are stricter than tarfile's filters: names stay
inside the folder, and links are created last, so nothing is written through a link.
"""

import gzip
import os
import posixpath
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, Any

from filelock import FileLock

from afield.errors import DataError
from afield.progress import progress

__all__ = ["CHUNK_BYTES", "translate_disk_errors", "unpack"]

CHUNK_BYTES = 1 << 17
# Raised here and in the standard library for a broken, encrypted or malicious archive.
ARCHIVE_ERRORS = (
    *(zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, zlib.error),
    *(EOFError, RuntimeError, ValueError),
)
# Name, size and content of a member. The content of a file is a function that opens it, that of a
# link is its target, that of a folder is None.
Member = tuple[str, int, Callable[[], Any] | str | None]


@contextmanager
def translate_disk_errors(path: Path) -> Iterator[None]:
    """Raise errors of the disk as a DataError of one line."""
    try:
        yield
    except DataError:
        raise
    except OSError as error:
        reason = f"{error.filename or path}: {error.strerror or error}"
        raise DataError(f"{reason}; check the path, its permissions and the free space") from None


def unpack(archive: Path, into: Path) -> None:
    """Unpack a zip, tar, tar.gz, tgz or gz file into a folder, completely or not at all."""
    suffixes = (suffix for suffix in FORMATS if archive.name.lower().endswith(suffix))
    members = FORMATS.get(next(suffixes, ""))
    if members is None:
        raise DataError(f"{archive}: unknown archive format; use one of {', '.join(FORMATS)}")
    into = into.resolve()
    # On the disk of the target, so that moving is renaming.
    parent = into if into.is_dir() else into.parent
    folder = parent / f".{archive.name}.unpacking"
    with translate_disk_errors(archive):
        parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder}.lock"):
            # A killed process may have left one.
            shutil.rmtree(folder, ignore_errors=True)
            try:
                _fill(folder, archive, members)
                for source, target in list(_moves(folder, into)):
                    source.replace(target)
            except ARCHIVE_ERRORS as error:
                reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(":")
                advice = "nothing was unpacked: delete the file and download it again"
                raise DataError(f"{archive}: {reason}; {advice}") from None
            finally:
                shutil.rmtree(folder, ignore_errors=True)


def _fill(folder: Path, archive: Path, members: Callable[[IO[bytes]], Iterator[Member]]) -> None:
    """Write the members of an archive into a new folder: files first, links last."""
    folder.mkdir()
    free = shutil.disk_usage(folder).free
    links = []
    packed = archive.stat().st_size
    with archive.open("rb") as raw, progress(f"unpack {archive.name}", packed) as advance:
        for name, size, content in members(raw):
            target = folder.joinpath(*_path_parts(name))
            if not 0 <= size <= free:
                sizes = f"member {name!r} has {size:,} bytes, but only {free:,} are free"
                raise DataError(f"{archive}: {sizes}; free some space or use another folder")
            free -= size
            (target if content is None else target.parent).mkdir(parents=True, exist_ok=True)
            if isinstance(content, str):
                links.append((target, content))
            elif content is not None:
                with content() as source, target.open("wb") as file:
                    while chunk := source.read(CHUNK_BYTES):
                        file.write(chunk)
                        advance(raw.tell())
    for target, text in links:
        _make_link(target, text, folder)


def _path_parts(name: str) -> tuple[str, ...]:
    """Parts of a member's path, from any operating system; it must not leave the folder."""
    path = PureWindowsPath(name)
    if path.anchor or ".." in path.parts:
        raise ValueError(f"member {name!r} is outside the folder")
    return path.parts


def _make_link(target: Path, text: str, folder: Path) -> None:
    """Create a link to another member: at most upwards through real folders, then down."""
    name = target.relative_to(folder)
    end = posixpath.normpath((name.parent / text).as_posix())
    is_normal = posixpath.normpath(text) == str(PurePosixPath(text))
    inside = is_normal and not end.startswith(("/", ".."))
    if not inside or not (folder / end).exists() or os.path.lexists(target):
        raise ValueError(f"member {str(name)!r} is a link to {text!r}, which is not another member")
    target.symlink_to(text)


def _moves(source: Path, target: Path) -> Iterator[tuple[Path, Path]]:
    """Pairs of paths to rename; members are added to a folder that exists."""
    is_folder = source.is_dir() and not source.is_symlink()
    if is_folder and target.is_dir():
        for child in source.iterdir():
            yield from _moves(child, target / child.name)
    elif target.exists() and is_folder != (target.is_dir() and not target.is_symlink()):
        raise DataError(f"{target}: blocks a member of the archive; move it elsewhere")
    else:
        yield source, target


def _zip_members(raw: IO[bytes]) -> Iterator[Member]:
    with zipfile.ZipFile(raw) as file:
        for info in file.infolist():
            kind = stat.S_IFMT(info.external_attr >> 16)
            if kind == stat.S_IFLNK:
                yield info.filename, info.file_size, os.fsdecode(file.open(info).read(CHUNK_BYTES))
            elif kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise ValueError(f"member {info.filename!r} is neither a file, a folder nor a link")
            else:
                content = None if info.is_dir() else partial(file.open, info)
                yield info.filename, info.file_size, content


def _tar_members(raw: IO[bytes]) -> Iterator[Member]:
    with tarfile.open(fileobj=raw) as file:
        for info in file:
            if info.isreg():
                yield info.name, info.size, partial(file.extractfile, info)
            elif info.isdir():
                yield info.name, 0, None
            elif info.issym():
                yield info.name, 0, info.linkname
            elif info.islnk():
                # The target of a hard link is relative to the top of the archive.
                start = posixpath.dirname(info.name)
                yield info.name, 0, posixpath.relpath(info.linkname, start)
            else:
                raise ValueError(f"member {info.name!r} is neither a file, a folder nor a link")
        # tarfile takes an unreadable or missing header for the end of the archive.
        source: Any = file.fileobj
        source.seek(file.offset)
        if source.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise EOFError("cut short or damaged in the middle")
        # Read to the end: the checksum of the compressed data comes last.
        while source.read(CHUNK_BYTES):
            pass


def _gzip_members(raw: IO[bytes]) -> Iterator[Member]:
    # The last four bytes hold the unpacked size; an empty file has 18 bytes.
    if raw.seek(0, os.SEEK_END) < 18:
        raise EOFError("cut short")
    raw.seek(-4, os.SEEK_END)
    size = int.from_bytes(raw.read(4), "little")
    raw.seek(0)
    yield Path(raw.name).stem, size, partial(gzip.open, raw)


FORMATS = {
    ".zip": _zip_members,
    ".tar": _tar_members,
    ".tar.gz": _tar_members,
    ".tgz": _tar_members,
    ".gz": _gzip_members,
}
