"""Downloads that can be resumed and are verified, and archives that are unpacked safely.

A download is written to ``<name>.part``. An interrupted one is resumed there, and the file gets its
name once its checksum is right.

An archive is unpacked into a hidden folder beside the target and moved at the end. The same rules
hold for all formats and versions of Python, and are stricter than tarfile's filters: names stay
inside the folder, and links are created last, so nothing is written through a link.
"""

import gzip
import hashlib
import os
import posixpath
import shutil
import stat
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException
from pathlib import Path, PurePosixPath, PureWindowsPath
from string import hexdigits
from typing import IO, Any, NoReturn
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit
from urllib.request import FTPHandler, Request, build_opener

from afield.errors import DataError, SpecError
from afield.files import acquire_lock, flush_to_disk
from afield.progress import progress

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
        with acquire_lock(folder.with_name(f"{folder.name}.lock")):
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


DIGEST_LENGTHS = {"md5": 32, "sha256": 64}
TIMEOUT = 30.0
# Seconds before each retry; the list starts over when an attempt has received more of the file.
RETRY_DELAYS = (1.0, 3.0, 9.0)
CONNECTION_BROKEN, PARTIAL_CONTENT, REDIRECTED = 0, 206, 302
TOO_LONG, RANGE_NOT_SATISFIABLE = 413, 416
TRANSIENT_CODES = (CONNECTION_BROKEN, 408, 425, 429, 500, 502, 503, 504)


@dataclass(frozen=True)
class Archive:
    """A file on the web.

    Parameters
    ----------
    url
        Its address.
    checksum
        ``md5:…`` or ``sha256:…``, in hexadecimal.
    size
        Size in bytes; 0 if unknown.
    name
        Name of the file; by default the last part of the address.
    folder
        Folder below the data root into which the file is unpacked.
    mirrors
        Further addresses, tried in turn.
    """

    url: str
    checksum: str
    size: int = 0
    name: str = ""
    folder: str = ""
    mirrors: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for url in (self.url, *self.mirrors):
            if not url.startswith(("https://", "http://")):
                raise SpecError(
                    f"{url}: not a web address; use one that starts with https:// or http://"
                )
        name = self.name or unquote(PurePosixPath(urlsplit(self.url).path).name)
        if PureWindowsPath(name).name != name or name in ("", ".."):
            raise SpecError(f"{self.url}: {name!r} is not a file name; give one as name=")
        kind, _, digest = self.checksum.partition(":")
        if len(digest) != DIGEST_LENGTHS.get(kind) or not set(digest) <= set(hexdigits):
            raise SpecError(f"{name}: checksum {self.checksum!r}; give md5:… or sha256:… in hex")
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "checksum", self.checksum.lower())


class _FetchError(Exception):
    """Why the file could not be fetched from an address, with the status code of the server."""

    def __init__(self, reason: str, code: int = CONNECTION_BROKEN) -> None:
        super().__init__(reason)
        self.code = code


class _NoFTP(FTPHandler):
    """Rejects redirects to FTP; urllib rejects all other addresses that are not on the web."""

    def ftp_open(self, req: Request) -> NoReturn:
        raise _FetchError(f"redirects to {req.full_url}, which is not a web address", REDIRECTED)


def fetch(archive: Archive, into: Path) -> Path:
    """Download a file into a folder, unless it is there with the right checksum."""
    path = into / archive.name
    with translate_disk_errors(path):
        if _checksum(path, archive) == archive.checksum:
            return path
        into.mkdir(parents=True, exist_ok=True)
        with acquire_lock(into / f".{archive.name}.lock"):
            # Another process may have downloaded it while this one waited for the lock.
            if _checksum(path, archive) != archive.checksum:
                _download(archive, path)
    return path


def _download(archive: Archive, path: Path) -> None:
    """Try all addresses in turn, and rename the partial file once it is complete."""
    part = path.with_name(f"{path.name}.part")
    part.touch()
    problems = []
    try:
        for url in (archive.url, *archive.mirrors):
            try:
                _complete(part, url, archive)
            except _FetchError as error:
                problems.append(f"{url}: {error}")
            else:
                part.replace(path)
                return
    finally:
        if part.exists() and not part.stat().st_size:
            part.unlink()
    advice = f"run the command again later, or put the file at {path} yourself"
    if part.exists():
        advice = "the partial file is kept; run the command again to resume"
    raise DataError(f"{archive.name}: {'; '.join(problems)}; {advice}")


def _complete(part: Path, url: str, archive: Archive) -> None:
    """Fetch the rest of a partial file from one address, and verify the file."""
    start = best = part.stat().st_size
    delays = iter(RETRY_DELAYS)
    while True:
        try:
            _receive(part, url, archive)
            break
        except _FetchError as error:
            if error.code == RANGE_NOT_SATISFIABLE:
                break
            if part.stat().st_size > best:
                best, delays = part.stat().st_size, iter(RETRY_DELAYS)
            delay = next(delays, None)
            if error.code not in TRANSIENT_CODES or delay is None:
                raise
            time.sleep(delay)
    flush_to_disk(part)
    checksum = _checksum(part, archive)
    if checksum == archive.checksum:
        return
    os.truncate(part, 0)
    if not start:
        raise _FetchError(
            f"checksum {checksum} instead of {archive.checksum}, so the file was removed"
        )
    # The beginning came from another address or an older version: start over at this address.
    _complete(part, url, archive)


def _receive(part: Path, url: str, archive: Archive) -> None:
    """Append the response of one request; start over if the server cannot resume."""
    done = part.stat().st_size
    headers = {"User-Agent": "afield"} | ({"Range": f"bytes={done}-"} if done else {})
    with _translate_net_errors():
        response = build_opener(_NoFTP).open(Request(url, headers=headers), timeout=TIMEOUT)
    with response, part.open("ab") as file:
        if response.status != PARTIAL_CONTENT:
            done = 0
            file.truncate(done)
        total = done + response.length if response.length else archive.size
        free = shutil.disk_usage(part.parent).free
        if total - done > free:
            sizes = f"{total - done:,} bytes are needed, but only {free:,} are free"
            raise DataError(f"{part.parent}: {sizes}; free some space or use another folder")
        with progress(archive.name, total or None) as advance:
            while chunk := _read(response):
                done += file.write(chunk)
                advance(done)
                if done > (archive.size or done):
                    file.truncate(0)
                    raise _FetchError(
                        f"sends more than the {archive.size:,} bytes of the file", TOO_LONG
                    )
        if response.length:
            raise _FetchError(f"the connection ended after {done:,} of {total:,} bytes")


def _read(response: IO[bytes]) -> bytes:
    with _translate_net_errors():
        return response.read(CHUNK_BYTES)


@contextmanager
def _translate_net_errors() -> Iterator[None]:
    """Raise errors of the network as a `_FetchError`; the block must not touch the disk."""
    try:
        yield
    except HTTPError as error:
        error.close()
        raise _FetchError(f"the server answered {error.code} {error.reason}", error.code) from None
    except (OSError, HTTPException) as error:
        raise _FetchError(f"the connection broke ({error})") from None


def _checksum(path: Path, archive: Archive) -> str:
    """Checksum of a file, computed as the archive's was; empty if there is no file."""
    if not path.is_file():
        return ""
    kind = archive.checksum.partition(":")[0]
    digest = hashlib.new(kind, usedforsecurity=False)
    with path.open("rb") as file, progress(f"check {archive.name}", path.stat().st_size) as advance:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            advance(file.tell())
    return f"{kind}:{digest.hexdigest()}"
