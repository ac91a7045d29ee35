"""Datasets of the Hugging Face hub: tables in Parquet, CSV or JSON lines, at a fixed revision.

    hf:flwrlabs/pacs                  the newest revision, which the record pins
    hf:flwrlabs/pacs@9c6f80e…         a revision
    hf:owner/name/folder              a configuration in a folder of its own

Files are downloaded into the cache of `huggingface_hub` (``HF_HOME``), and their checksums are
those that the hub states. No code of a repository is run: there is no ``trust_remote_code`` here.
"""

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache
from itertools import count
from pathlib import Path

from afield.data.domains import DomainSet
from afield.data.frames import TABLE_SUFFIXES, ColumnChoice, is_table, read_frames
from afield.data.listing import HUB_PREFIX
from afield.data.sources.tables import find_columns, table_dataset
from afield.errors import DataError, SpecError
from afield.files import atomic_write, sha256

FORM = re.compile(r"([\w.-]+/[\w.-]+)((?:/[\w.-]+)*)(?:@([\w./-]+))?")
# Length of a SHA-256, which names large files in the cache, and of the SHA-1 of git's objects.
SHA256_LENGTH, SHA1_LENGTH = 64, 40
PNG_START = b"\x89PNG"


def hub_dataset(spec: str, choice: ColumnChoice) -> DomainSet:
    """Dataset of a repository on the hub; its `spec` names the revision."""
    snapshot, parts = _fetch(spec)
    path, _, _ = spec.partition("@")
    name = path.removeprefix(HUB_PREFIX).split("/")[1]
    pinned = f"{path}@{snapshot.name}"
    return table_dataset(snapshot, choice, files=parts, spec=pinned, name=name)


def _fetch(spec: str) -> tuple[Path, list[Path]]:
    """The snapshot of a repository in the hub's cache, and the checked files of its table."""
    match = FORM.fullmatch(spec.removeprefix(HUB_PREFIX))
    if match is None:
        raise SpecError(f"{spec}: not a dataset of the hub; write hf:owner/name")
    repository, folder, revision = match.groups()
    patterns = [f"{folder.lstrip('/')}/*" if folder else f"*{end}" for end in TABLE_SUFFIXES]
    snapshot = download_snapshot(repository, revision, kind="dataset", patterns=patterns)
    parts = table_parts(snapshot / folder.lstrip("/"), spec)
    for part in parts:
        _check_content(part, part.stat().st_size, part.stat().st_mtime_ns)
    return snapshot, parts


def download_snapshot(
    repository: str, revision: str | None, *, kind: str, patterns: list[str] | None = None
) -> Path:
    """Folder with the files of a repository in the hub's cache; its name is the revision."""
    from huggingface_hub import snapshot_download

    try:
        folder = snapshot_download(
            repository, repo_type=kind, revision=revision, allow_patterns=patterns
        )
    except Exception as error:  # of the hub, of its transport, or of the file system
        reason = str(error).partition("\n")[0][:160]
        where = f"{HUB_PREFIX}{repository}" + (f"@{revision}" if revision else "")
        raise DataError(
            f"{where}: cannot be fetched from the hub ({reason}); check the name and the "
            "connection, or download it elsewhere and set HF_HOME"
        ) from error
    return Path(folder)


def table_parts(folder: Path, where: str) -> list[Path]:
    """The files of a table in a folder laid out as on the hub; Parquet comes first."""
    found = sorted(path for path in folder.rglob("*") if path.is_file() and is_table(path))
    files = [path for path in found if path.suffix == ".parquet"] or found
    if not files:
        raise DataError(
            f"{where}: no Parquet, CSV or JSON lines; a dataset that needs code of its own to be "
            "read is not run: convert it, or give its folder"
        )
    folders = sorted({path.parent for path in files})
    if len(folders) > 1:
        names = ", ".join(str(each.relative_to(folder)) for each in folders[:5])
        raise DataError(f"{where}: several configurations ({names}); append one: {where}/FOLDER")
    return files


def write_hub_images(spec: str, folder: Path, *, lists: bool = False) -> None:
    """Write the images of a repository as files, in the tree ``folder/<domain>/<class>/``.

    With `lists`, the splits after which the files of the repository are named are written too, as
    ``folder/<domain>_train.txt`` and ``folder/<domain>_test.txt``.
    """
    listed: dict[str, list[str]] = defaultdict(list)
    with atomic_write(folder, folder=True) as temporary:
        for part in _fetch(spec)[1]:
            split = part.stem.partition("-")[0]
            for domain, path in _write_images(part, temporary):
                listed[f"{domain}_{split}.txt"].append(f"{path}\n")
        for name, lines in listed.items() if lists else ():
            (temporary / name).write_text("".join(lines), encoding="utf-8")


def _write_images(part: Path, folder: Path) -> Iterator[tuple[str, str]]:
    """Write the images of a table; yield the domain of each, and its path in the folder."""
    numbers = count()
    for frame in read_frames(part):
        columns = find_columns(frame, ColumnChoice(), part.stem)
        if not columns.image:
            raise DataError(f"{part.stem}: has no images")
        chosen = (columns.domain, columns.label, columns.image)
        for domain, label, cell in zip(*(frame[name].tolist() for name in chosen), strict=True):
            content = cell["bytes"] if isinstance(cell, dict) else cell
            names = [str(domain), str(label)]
            if any(name in ("", ".", "..") or "/" in name for name in names):
                raise DataError(f"{part.stem}: {names} cannot be the names of folders")
            suffix = "png" if content.startswith(PNG_START) else "jpg"
            path = "/".join([*names, f"{part.stem}-{next(numbers):05d}.{suffix}"])
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
            yield names[0], path


@lru_cache(maxsize=1024)
def _check_content(path: Path, size: int, modified: int) -> None:
    """Compare a file with the checksum that the hub states, which names it in the cache."""
    del modified
    stated = path.resolve().name
    if re.fullmatch(r"[0-9a-f]+", stated) is None:
        return  # a copy without links, as on Windows, has no checksum
    if len(stated) == SHA256_LENGTH:
        found = sha256(path)
    elif len(stated) == SHA1_LENGTH:
        found = hashlib.sha1(f"blob {size}\0".encode() + path.read_bytes()).hexdigest()
    else:
        return
    if found != stated:
        raise DataError(
            f"{path}: its checksum is not the one that the hub states; delete it and try again"
        )
