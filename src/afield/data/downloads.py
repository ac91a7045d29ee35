"""Downloads that can be resumed and are verified.

A download is written to ``<name>.part``. An interrupted one is resumed there, and the file gets its
name once its checksum is right.
"""

import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path, PurePosixPath, PureWindowsPath
from string import hexdigits
from typing import IO, NoReturn
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit
from urllib.request import FTPHandler, Request, build_opener

from filelock import FileLock

from afield.data.archives import CHUNK_BYTES, translate_disk_errors
from afield.errors import DataError, SpecError
from afield.files import flush_to_disk
from afield.progress import progress

__all__ = ["Archive", "fetch"]

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
        with FileLock(into / f".{archive.name}.lock"):
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
