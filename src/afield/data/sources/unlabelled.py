"""Images or texts without labels: a file, or a folder whose files are in no folders of classes."""

import os
from functools import partial
from pathlib import Path

from afield.data.cache import contents_digest
from afield.data.domains import Domain, DomainSet, ReadOptions
from afield.data.modality import IMAGE, TEXT, FileModality
from afield.data.sources.folders import read_files
from afield.data.sources.labeled_files import LabeledFile

__all__ = ["unlabelled_files"]

# Depth of a file in root/<domain>/<class>/<file>.
LABELED_DEPTH = 3


def unlabelled_files(path: Path) -> DomainSet | None:
    """The images or texts of a file or folder as one domain without classes; None if labelled.

    Folders of other data may contain notes: only a folder in which all files are texts is one of
    texts.
    """
    path = path.expanduser()
    if not path.exists():
        return None
    path = path.resolve()
    files = _visible_files(path)
    return _of_images(path, files) or _of_texts(path, files)


def _of_images(path: Path, files: list[Path]) -> DomainSet | None:
    files = [file for file in files if file.suffix.lower() in IMAGE.suffixes]
    if not files or (path.is_dir() and min(_depths(path, files)) >= LABELED_DEPTH):
        return None
    return _dataset(path, files, IMAGE)


def _of_texts(path: Path, files: list[Path]) -> DomainSet | None:
    if not files or any(file.suffix.lower() not in TEXT.suffixes for file in files):
        return None
    # Labelled texts may lie beside notes and lists of files, which are texts, too.
    if path.is_dir() and max(_depths(path, files)) >= LABELED_DEPTH:
        return None
    return _dataset(path, files, TEXT)


def _dataset(path: Path, files: list[Path], modality: FileModality) -> DomainSet:
    root = path if path.is_dir() else path.parent
    entries = [LabeledFile(file, 0) for file in files]
    return DomainSet(
        name=path.stem,
        domains=(path.stem,),
        classes=(),
        reader=partial(_read, root, path.stem, entries, modality),
        origin=str(path),
        fingerprint=contents_digest(root, files),
        modality=modality,
    )


def _visible_files(path: Path) -> list[Path]:
    """The file itself, or the files at any depth of a folder; hidden ones are ignored."""
    if path.is_file():
        return [path]
    files: list[Path] = []
    for folder, subfolders, names in os.walk(path):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        files += [Path(folder, name) for name in names if not name.startswith(".")]
    return sorted(files)


def _depths(root: Path, files: list[Path]) -> set[int]:
    return {len(file.relative_to(root).parts) for file in files}


def _read(
    root: Path,
    name: str,
    entries: list[LabeledFile],
    modality: FileModality,
    options: ReadOptions,
) -> dict[str, Domain]:
    return read_files(root, {name: entries}, modality, options)
