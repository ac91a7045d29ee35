"""Datasets in folders: images, audio files or texts in ``root/<domain>/<class>/<file>``.

The tree is checked before training, and every file is decoded once (`afield.data.cache`).
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from afield.data.cache import contents_digest, decode_files
from afield.data.domains import Domain, DomainSet, Reader, ReadOptions, Training
from afield.data.images import silence_pillow
from afield.data.modality import IMAGE, TEXT, FileModality, Text, modality_of_file
from afield.data.sources.labeled_files import (
    LabeledFile,
    find_files,
    find_lists,
    list_files,
    list_folders,
)
from afield.data.sources.listing import once
from afield.errors import DataError

__all__ = ["TEXT_TRAINING", "DomainFiles", "folder_dataset", "folder_reader", "read_files"]

# Default settings for texts: a small network that takes about a minute.
TEXT_TRAINING = Training(steps=300, backbone="small:text")
# Number of broken files that an error message names.
MAX_NAMED_FILES = 5

DomainFiles = Mapping[str, Sequence[LabeledFile]]


def _has_domains(path: Path) -> bool:
    """Whether two or more folders in it have folders themselves, as domains have classes."""
    return sum(bool(list_folders(child)) for child in list_folders(path)) > 1


def folder_dataset(path: Path) -> DomainSet:
    """Dataset of a user's folder; its subfolders are the domains, theirs are the classes."""
    path = path.resolve()
    return once(("dataset", path), lambda: _folder_dataset(path))


def _folder_dataset(path: Path) -> DomainSet:
    modality = _detect_modality(path)
    names = [child.name for child in list_folders(path)]
    if len(names) < 2:
        inner = [path / name for name in names if _has_domains(path / name)]
        guess = f"; did you mean {inner[0]}?" if inner else ""
        raise DataError(
            f"{path}: {len(names)} domain folder(s); at least two are needed, as "
            f"root/<domain>/<class>/<{modality.noun}>{guess}"
        )
    classes = sorted({folder.name for name in names for folder in list_folders(path / name)})
    files = find_files(path, names, classes, modality)
    if len(classes) < 2:
        present = f"only class {classes[0]!r}" if classes else "no class folders"
        raise DataError(f"{path}: {present}; a classifier needs two classes")
    contents = contents_digest(path, [*_paths(files), *find_lists(path, names)])
    return DomainSet(
        name=path.name,
        domains=tuple(names),
        classes=tuple(classes),
        reader=partial(read_files, path, files, modality),
        training=TEXT_TRAINING if isinstance(modality, Text) else Training(),
        origin=str(path),
        fingerprint=_fingerprint(contents, names, classes),
        modality=modality,
    )


def folder_reader(
    folder: str, domains: Sequence[str], classes: Sequence[str], modality: FileModality = IMAGE
) -> Reader:
    """Reader of ``<data root>/folder/<domain>/<class>/<file>``, for a declared dataset."""

    def read(options: ReadOptions) -> dict[str, Domain]:
        path = options.root.resolve() / folder
        return read_files(path, find_files(path, domains, classes, modality), modality, options)

    return read


def read_files(
    root: Path,
    files: DomainFiles,
    modality: FileModality,
    options: ReadOptions,
    *,
    decode: Callable[[Path], NDArray[Any]] | None = None,
    stated: Sequence[Path] | None = None,
    selection: str = "",
) -> dict[str, Domain]:
    """Decode the files of all domains; samples are mapped into memory.

    Samples within one file have paths such as ``samples.parquet/17``; then `decode` reads such a
    path and `stated` are the files themselves. `selection` distinguishes selections of the files.
    """
    side = options.side or modality.stored_side(64)
    modality = modality.with_tokens(options.tokenizer, options.tokens)
    with silence_pillow():
        decoded = decode_files(
            root,
            _paths(files),
            decode or partial(modality.decode, side=side),
            description=modality.cache_form(side) + selection,
            like=modality.empty_row(side),
            decode_errors=modality.decode_errors,
            stated=stated,
        )
    reasons = {file: _strip_path(reason, file) for file, reason in decoded.broken.items()}
    if reasons and not options.skip_broken:
        raise DataError(_describe_broken(root, reasons, modality))
    domains, start = {}, 0
    for name, entries in files.items():
        good = [entry for entry in entries if entry.file not in reasons]
        rows = decoded.rows[start : start + len(good)]
        broken = {
            str(entry.file.relative_to(root)): reasons[entry.file]
            for entry in entries
            if entry.file in reasons
        }
        domain = _domain(root, modality.to_samples(rows), good, broken)
        cut, folder = modality.count_cut(rows), None if decode else root
        domains[name] = replace(domain, truncated=cut, folder=folder)
        start += len(good)
    return domains


def _paths(files: DomainFiles) -> list[Path]:
    return [entry.file for entries in files.values() for entry in entries]


def _domain(
    root: Path, x: Tensor, entries: Sequence[LabeledFile], broken: Mapping[str, str]
) -> Domain:
    tests = [entry.test for entry in entries]
    validation = [entry.validation for entry in entries]
    return Domain(
        x=x,
        y=torch.tensor([entry.label for entry in entries]),
        test=None if None in tests or not tests else torch.tensor(tests),
        validation=torch.tensor(validation) if any(validation) else None,
        names=[str(entry.file.relative_to(root)) for entry in entries],
        broken=broken,
    )


def _fingerprint(*parts: object) -> str:
    """Digest of the contents and of the folders, since a folder without files is a class too."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _describe_broken(root: Path, reasons: Mapping[Path, str], modality: FileModality) -> str:
    """Name the broken files in one line, relative to the folder."""
    named = [f"{file.relative_to(root)} ({reason})" for file, reason in reasons.items()]
    more = f" and {len(named) - MAX_NAMED_FILES} more" if len(named) > MAX_NAMED_FILES else ""
    files = "; ".join(named[:MAX_NAMED_FILES])
    return (
        f"{root}: {len(named)} broken file(s), or not {modality.noun}s: {files}{more}; "
        "replace them, or use --skip-broken"
    )


def _strip_path(reason: str, file: Path) -> str:
    """Remove the path from the error message of a library; ours names it already."""
    return reason.replace(repr(str(file)), "").replace(str(file), "").strip(" :") or "unreadable"


def _detect_modality(path: Path) -> FileModality:
    """Modality of the first file in a class folder whose suffix is known.

    Folders of images may contain notes: only a folder without other samples is one of texts.
    """
    has_texts = False
    for domain in list_folders(path):
        for class_folder in list_folders(domain):
            for file in list_files(class_folder):
                modality = modality_of_file(file)
                if modality and not isinstance(modality, Text):
                    return modality
                has_texts = has_texts or modality is not None
    return TEXT if has_texts else IMAGE
