"""Files from the web: fetched once and checked.

A download is written to ``<name>.part``, goes on from there after a break, and gets its name when
its checksum is right.
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
# Seconds before another try; the count starts anew when a try has brought more of the file.
RETRY_DELAYS = (1.0, 3.0, 9.0)
CONNECTION_BROKEN, PARTIAL_CONTENT, REDIRECTED, RANGE_NOT_SATISFIABLE = 0, 206, 302, 416
TRANSIENT_CODES = (CONNECTION_BROKEN, 408, 425, 429, 500, 502, 503, 504)


@dataclass(frozen=True)
class Archive:
    """A file on the web: its address, its checksum as ``md5:…`` or ``sha256:…``, its bytes.

    `name` is that of the file, by default the last part of the address; `folder` is where under a
    target the archive is unpacked; `mirrors` are further addresses, tried in turn.
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
                raise SpecError(f"{url}: not a web address; give one with https:// or http://")
        name = self.name or unquote(PurePosixPath(urlsplit(self.url).path).name)
        if PureWindowsPath(name).name != name or name in ("", ".."):
            raise SpecError(f"{self.url}: {name!r} is not the name of a file; give one as name=")
        kind, _, digest = self.checksum.partition(":")
        if len(digest) != DIGEST_LENGTHS.get(kind) or not set(digest) <= set(hexdigits):
            raise SpecError(f"{name}: checksum {self.checksum!r}; give md5:… or sha256:… in hex")
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "checksum", self.checksum.lower())


class _FetchError(Exception):
    """Why an address did not give the file, with the server's code."""

    def __init__(self, reason: str, code: int = CONNECTION_BROKEN) -> None:
        super().__init__(reason)
        self.code = code


class _NoFTP(FTPHandler):
    """Redirections lead to the web only; urllib itself refuses all others but this."""

    def ftp_open(self, req: Request) -> NoReturn:
        raise _FetchError(f"leads to {req.full_url}, which is not the web", REDIRECTED)


def fetch(archive: Archive, into: Path) -> Path:
    """The archive's file in this folder; downloaded, unless it is there with its checksum."""
    path = into / archive.name
    with translate_disk_errors(path):
        if _checksum(path, archive) == archive.checksum:
            return path
        into.mkdir(parents=True, exist_ok=True)
        with FileLock(into / f".{archive.name}.lock"):
            # While this process waited, another may have done the work.
            if _checksum(path, archive) != archive.checksum:
                _download(archive, path)
    return path


def _download(archive: Archive, path: Path) -> None:
    """Try all addresses, and give the file its name once it is right."""
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
    advice = f"run the command again later, or put the right file at {path}"
    if part.exists():
        advice = "the part is kept; run the command again to go on"
    raise DataError(f"{archive.name}: {'; '.join(problems)}; {advice}")


def _complete(part: Path, url: str, archive: Archive) -> None:
    """Get what is missing of a part from one address, and check the whole."""
    start = best = part.stat().st_size
    pauses = iter(RETRY_DELAYS)
    while True:
        try:
            _receive(part, url, archive)
            break
        except _FetchError as error:
            if error.code == RANGE_NOT_SATISFIABLE:
                break
            if part.stat().st_size > best:
                best, pauses = part.stat().st_size, iter(RETRY_DELAYS)
            pause = next(pauses, None)
            if error.code not in TRANSIENT_CODES or pause is None:
                raise
            time.sleep(pause)
    flush_to_disk(part)
    found = _checksum(part, archive)
    if found == archive.checksum:
        return
    os.truncate(part, 0)
    if not start:
        raise _FetchError(f"checksum {found} instead of {archive.checksum}, so it was removed")
    # The beginning was of another address or another day; this address may well be right.
    _complete(part, url, archive)


def _receive(part: Path, url: str, archive: Archive) -> None:
    """Append what one request brings; start again where a server does not send parts."""
    done = part.stat().st_size
    headers = {"User-Agent": "afield"} | ({"Range": f"bytes={done}-"} if done else {})
    with _net_errors_told():
        response = build_opener(_NoFTP).open(Request(url, headers=headers), timeout=TIMEOUT)
    with response, part.open("ab") as file:
        if response.status != PARTIAL_CONTENT:
            done = 0
            file.truncate(done)
        total = done + response.length if response.length else archive.size
        free = shutil.disk_usage(part.parent).free
        if total - done > free:
            told = f"{total - done:,} bytes are to come, {free:,} are free"
            raise DataError(f"{part.parent}: {told}; make room or use another folder")
        with progress(archive.name, total or None) as tell:
            while chunk := _read(response):
                done += file.write(chunk)
                tell(done)
        if response.length:
            raise _FetchError(f"the connection ended after {done:,} of {total:,} bytes")


def _read(response: IO[bytes]) -> bytes:
    with _net_errors_told():
        return response.read(CHUNK_BYTES)


@contextmanager
def _net_errors_told() -> Iterator[None]:
    """Errors of the net as reasons to try again or elsewhere; those of the disk are not."""
    try:
        yield
    except HTTPError as error:
        error.close()
        raise _FetchError(f"the server answers {error.code} {error.reason}", error.code) from None
    except (OSError, HTTPException) as error:
        raise _FetchError(f"the connection broke ({error})") from None


def _checksum(path: Path, archive: Archive) -> str:
    """A file's checksum, of the kind that is known of the archive; empty where no file is."""
    if not path.is_file():
        return ""
    kind = archive.checksum.partition(":")[0]
    digest = hashlib.new(kind, usedforsecurity=False)
    with path.open("rb") as file, progress(f"check {archive.name}", path.stat().st_size) as tell:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            tell(file.tell())
    return f"{kind}:{digest.hexdigest()}"
