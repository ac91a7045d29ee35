"""Files with labels in a tree ``root/<domain>/<class>/<file>``, with optional split lists.

A folder may have the lists ``<domain>_train.txt`` and ``<domain>_test.txt`` for all of its domains:
one path per line, relative to the folder; what follows a space is ignored, as in DomainNet's lists.
A source domain then trains on its training list and validates on its test list, an unseen domain is
evaluated on its test list, and files on neither list are left out. With a third list
``<domain>_val.txt`` of all domains, a source validates on it, and its test list selects nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from afield.data.modality import FileModality
from afield.data.sources.listing import Entry, scan_folder
from afield.errors import DataError

__all__ = ["LabeledFile", "find_files", "find_lists", "list_files", "list_folders"]

# Created by operating systems; hidden files are ignored as well.
IGNORED_NAMES = ("thumbs.db", "desktop.ini", "__macosx")


@dataclass(frozen=True)
class LabeledFile:
    """A file, the index of its class, and whether it is on a test list; None without lists.

    `validation` is whether it is on a validation list.
    """

    file: Path
    label: int
    test: bool | None = None
    validation: bool = False


def find_files(
    root: Path, domains: Sequence[str], classes: Sequence[str], modality: FileModality
) -> dict[str, list[LabeledFile]]:
    """Find the files of all domains, checked; with lists, only the files on them."""
    lists = find_lists(root, domains)
    target = f"{root}/<domain>/<class>"
    _check_no_stray_files(root, modality, "a domain folder", target, lists)
    label_of = {name: label for label, name in enumerate(classes)}
    files = {domain: _domain_files(root / domain, label_of, modality) for domain in domains}
    if not lists:
        return files
    return {domain: _apply_lists(root, domain, entries) for domain, entries in files.items()}


def find_lists(root: Path, domains: Sequence[str]) -> list[Path]:
    """Training, test and perhaps validation lists of all domains; empty if there are none."""
    try:
        splits = _splits(root, domains)
        lists = [root / f"{name}_{split}.txt" for name in domains for split in splits]
        existing = [path for path in lists if path.is_file()]
    except OSError:  # the name of a domain is nearly as long as a file name may be
        return []
    if existing and len(existing) < len(lists):
        missing = next(path for path in lists if path not in existing)
        raise DataError(f"{missing}: missing, unlike {existing[0].name}; give all lists or none")
    return existing


def _splits(root: Path, domains: Sequence[str]) -> tuple[str, ...]:
    """Names of the lists: three if any domain has a validation list."""
    validated = any((root / f"{name}_val.txt").is_file() for name in domains)
    return ("train", "val", "test") if validated else ("train", "test")


def list_folders(path: Path) -> list[Path]:
    """Folders in a folder, sorted, without hidden ones; their names must be UTF-8."""
    folders = [child.path for child in _children(path) if child.is_folder]
    for folder in folders:
        try:
            folder.name.encode()
        except UnicodeEncodeError:
            raise DataError(f"{str(folder)!r}: the name is not UTF-8; rename it") from None
    return folders


def list_files(path: Path) -> list[Path]:
    """Files in a folder, sorted, without hidden ones."""
    return [child.path for child in _children(path) if not child.is_folder]


def _domain_files(
    folder: Path, label_of: dict[str, int], modality: FileModality
) -> list[LabeledFile]:
    if not folder.is_dir():
        raise DataError(f"{folder.parent}: no folder {folder.name!r}; the dataset is not complete")
    _check_no_stray_files(folder, modality, "a class folder", f"{folder}/<class>")
    class_folders = list_folders(folder)
    unknown = [path for path in class_folders if path.name not in label_of]
    if unknown:
        raise DataError(f"{unknown[0]}: not a class of this dataset; move it elsewhere")
    entries = [
        LabeledFile(file, label_of[path.name])
        for path in class_folders
        for file in _class_files(path, modality)
    ]
    if not entries:
        raise DataError(
            f"{folder}: no {modality.noun} in this domain; add some or remove the folder"
        )
    return entries


def _class_files(folder: Path, modality: FileModality) -> list[Path]:
    subfolders = list_folders(folder)
    if subfolders:
        raise DataError(
            f"{subfolders[0]}: a folder in a class folder; move its {modality.noun}s up"
        )
    files = list_files(folder)
    for file in files:
        if file.suffix.lower() not in modality.suffixes:
            suffixes = ", ".join(modality.suffixes)
            raise DataError(f"{file}: not an {modality.noun} ({suffixes}); move it elsewhere")
    return files


def _apply_lists(root: Path, domain: str, entries: Sequence[LabeledFile]) -> list[LabeledFile]:
    """Keep the files of a domain that are on its lists, and mark those on the test list."""
    labels = {entry.file: entry.label for entry in entries}
    listed: dict[Path, LabeledFile] = {}
    splits = _splits(root, [domain])
    for split in splits:
        path = root / f"{domain}_{split}.txt"
        for line in _read_lines(path):
            # A name may contain spaces, and a number may follow it.
            file = root / line if root / line in labels else root / line.rpartition(" ")[0]
            if file not in labels:
                raise DataError(f"{path}: {line!r} is not a file of domain {domain!r}")
            if file in listed:
                raise DataError(f"{path}: {line!r} is listed twice, or on both lists")
            listed[file] = LabeledFile(file, labels[file], split == "test", split == "val")
    if len({(entry.test, entry.validation) for entry in listed.values()}) < len(splits):
        names = ", ".join(f"_{split}.txt" for split in splits)
        raise DataError(f"{root / domain}{names}: one of the lists is empty")
    return [listed[entry.file] for entry in entries if entry.file in listed]


def _read_lines(path: Path) -> list[str]:
    try:
        # utf-8-sig: some editors write a BOM, which is not part of the first name.
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as a list ({error})") from None
    return [line.strip() for line in lines if line.strip()]


def _check_no_stray_files(
    path: Path, modality: FileModality, outside: str, target: str, lists: Sequence[Path] = ()
) -> None:
    files = [file for file in list_files(path) if file not in lists]
    stray = [file for file in files if file.suffix.lower() in modality.suffixes]
    if stray:
        raise DataError(f"{stray[0]}: outside {outside}; move it to {target}")


def _children(path: Path) -> list[Entry]:
    """Files and folders in a folder, without hidden and ignored ones.

    A broken link is an error, and so is a pipe, device or socket, whose reading may never end.
    """
    try:
        children = [
            child
            for child in scan_folder(path)
            if not child.path.name.startswith(".") and child.path.name.lower() not in IGNORED_NAMES
        ]
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    others = [child.path for child in children if child.is_other]
    if others:
        what = "not a regular file" if others[0].exists() else "a broken link"
        raise DataError(f"{others[0]}: {what}; remove it")
    return children
