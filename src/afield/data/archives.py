"""Archives: unpacked whole or not at all, and nowhere else than where they should be.

An archive is unpacked in a hidden folder beside its place and moved at the end. The same rules,
stricter than tarfile's filters, hold for all formats and versions of Python: names stay inside the
folder, and links are made last, so that nothing is written through one.
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
# What is raised here and in the standard library for a broken, encrypted or hostile archive.
ARCHIVE_ERRORS = (
    *(zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, zlib.error),
    *(EOFError, RuntimeError, ValueError),
)
# Name, size and content of a member: how to open a file, the text of a link, None for a folder.
Member = tuple[str, int, Callable[[], Any] | str | None]


@contextmanager
def translate_disk_errors(path: Path) -> Iterator[None]:
    """What the disk refuses, in one line."""
    try:
        yield
    except DataError:
        raise
    except OSError as error:
        told = f"{error.filename or path}: {error.strerror or error}"
        raise DataError(f"{told}; check the path, its permissions and the free space") from None


def unpack(archive: Path, into: Path) -> None:
    """Put all that is in a zip, tar, tar.gz, tgz or gz file into this folder, or nothing."""
    ends = (end for end in FORMATS if archive.name.lower().endswith(end))
    members = FORMATS.get(next(ends, ""))
    if members is None:
        raise DataError(f"{archive}: unknown kind of archive; known are {', '.join(FORMATS)}")
    into = into.resolve()
    # Either place is on the disk of the target, so that moving is renaming.
    place = into if into.is_dir() else into.parent
    folder = place / f".{archive.name}.unpacking"
    with translate_disk_errors(archive):
        place.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder}.lock"):
            # A process that was killed may have left one.
            shutil.rmtree(folder, ignore_errors=True)
            try:
                _fill(folder, archive, members)
                for source, target in list(_moves(folder, into)):
                    source.replace(target)
            except ARCHIVE_ERRORS as error:
                reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(":")
                told = f"{reason}; nothing was unpacked: remove the file and get it again"
                raise DataError(f"{archive}: {told}") from None
            finally:
                shutil.rmtree(folder, ignore_errors=True)


def _fill(folder: Path, archive: Path, members: Callable[[IO[bytes]], Iterator[Member]]) -> None:
    """Write the members of an archive to a new folder: files first, links last."""
    folder.mkdir()
    room = shutil.disk_usage(folder).free
    links = []
    packed = archive.stat().st_size
    with archive.open("rb") as raw, progress(f"unpack {archive.name}", packed) as tell:
        for name, size, content in members(raw):
            target = folder.joinpath(*_steps(name))
            if not 0 <= size <= room:
                told = f"member {name!r} has {size:,} bytes, {room:,} are free"
                raise DataError(f"{archive}: {told}; make room or use another folder")
            room -= size
            (target if content is None else target.parent).mkdir(parents=True, exist_ok=True)
            if isinstance(content, str):
                links.append((target, content))
            elif content is not None:
                with content() as source, target.open("wb") as file:
                    while chunk := source.read(CHUNK_BYTES):
                        file.write(chunk)
                        tell(raw.tell())
    for target, text in links:
        _link(target, text, folder)


def _steps(name: str) -> tuple[str, ...]:
    """The parts of a member's name, which may come from any system and must lead downwards."""
    path = PureWindowsPath(name)
    if path.anchor or ".." in path.parts:
        raise ValueError(f"member {name!r} leads out of the folder")
    return path.parts


def _link(target: Path, text: str, folder: Path) -> None:
    """A link to what is unpacked already: up through true folders, if at all, and then down."""
    name = target.relative_to(folder)
    end = posixpath.normpath((name.parent / text).as_posix())
    straight = posixpath.normpath(text) == str(PurePosixPath(text))
    inside = straight and not end.startswith(("/", ".."))
    if not inside or not (folder / end).exists() or os.path.lexists(target):
        raise ValueError(f"member {str(name)!r} is a link to {text!r}, which is no other member")
    target.symlink_to(text)


def _moves(source: Path, target: Path) -> Iterator[tuple[Path, Path]]:
    """What is to be renamed; a folder that is there already is added to."""
    folder = source.is_dir() and not source.is_symlink()
    if folder and target.is_dir():
        for child in source.iterdir():
            yield from _moves(child, target / child.name)
    elif target.exists() and folder != (target.is_dir() and not target.is_symlink()):
        raise DataError(f"{target}: is in the way of a member of that name; move it elsewhere")
    else:
        yield source, target


def _zipped(raw: IO[bytes]) -> Iterator[Member]:
    with zipfile.ZipFile(raw) as file:
        for info in file.infolist():
            kind = stat.S_IFMT(info.external_attr >> 16)
            if kind == stat.S_IFLNK:
                yield info.filename, info.file_size, os.fsdecode(file.open(info).read(CHUNK_BYTES))
            elif kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise ValueError(f"member {info.filename!r} is neither file, folder nor link")
            else:
                content = None if info.is_dir() else partial(file.open, info)
                yield info.filename, info.file_size, content


def _tarred(raw: IO[bytes]) -> Iterator[Member]:
    with tarfile.open(fileobj=raw) as file:
        for info in file:
            if info.isreg():
                yield info.name, info.size, partial(file.extractfile, info)
            elif info.isdir():
                yield info.name, 0, None
            elif info.issym():
                yield info.name, 0, info.linkname
            elif info.islnk():
                # A hard link is named from the top.
                start = posixpath.dirname(info.name)
                yield info.name, 0, posixpath.relpath(info.linkname, start)
            else:
                raise ValueError(f"member {info.name!r} is neither file, folder nor link")
        # tarfile takes a header that it cannot read, or none, for the end of the archive.
        source: Any = file.fileobj
        source.seek(file.offset)
        if source.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise EOFError("cut short or damaged in the middle")
        # The checksum of what is compressed comes last.
        while source.read(CHUNK_BYTES):
            pass


def _gzipped(raw: IO[bytes]) -> Iterator[Member]:
    # The last four bytes declare the size; 18 is that of an empty file.
    if raw.seek(0, os.SEEK_END) < 18:
        raise EOFError("cut short")
    raw.seek(-4, os.SEEK_END)
    size = int.from_bytes(raw.read(4), "little")
    raw.seek(0)
    yield Path(raw.name).stem, size, partial(gzip.open, raw)


FORMATS = {".zip": _zipped, ".tar": _tarred, ".tar.gz": _tarred, ".tgz": _tarred, ".gz": _gzipped}
