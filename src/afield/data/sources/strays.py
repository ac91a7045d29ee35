"""Files and folders in the wrong place: they are found all at once, and can be left out.

Names in the file ``.afieldignore`` of a folder, one per line, are left out of this folder by every
command. It lies with the data, so nobody has to repeat an option, and a new stray is noticed.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from afield.data.listing import Entry, scan_folder
from afield.data.modality import FileModality
from afield.errors import DataError
from afield.files import atomic_write

# Created by operating systems; hidden files are ignored as well.
IGNORED_NAMES = ("thumbs.db", "desktop.ini", "__macosx")
IGNORE_FILE = ".afieldignore"
# Files of scanners in hospitals, which are not read.
DICOM_SUFFIXES = (".dcm", ".dicom")


@dataclass(frozen=True)
class Stray:
    """A file or folder in the wrong place, and why it is wrong."""

    path: Path
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


def visible_entries(path: Path) -> list[Entry]:
    """What a folder holds, without hidden and ignored names."""
    try:
        entries = scan_folder(path)
        left_out = _read_ignored(path) if any(e.path.name == IGNORE_FILE for e in entries) else ()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    return [
        entry
        for entry in entries
        if not entry.path.name.startswith(".")
        and entry.path.name.lower() not in IGNORED_NAMES
        and entry.path.name not in left_out
    ]


def _read_ignored(path: Path) -> set[str]:
    return set(os.fsdecode((path / IGNORE_FILE).read_bytes()).split("\n"))


def find_strays(root: Path, modality: FileModality) -> list[Stray]:
    """Everything in ``root/<domain>/<class>/<file>`` that keeps it from being a dataset of files.

    Reading stops at the first of them; this goes on.
    """
    strays = []

    def look(path: Path, depth: int) -> None:
        for child in visible_entries(path):
            if reason := _stray_reason(child, depth, modality):
                strays.append(Stray(child.path, reason))
            elif child.is_folder:
                look(child.path, depth + 1)

    look(root, 0)
    return strays


def _stray_reason(child: Entry, depth: int, modality: FileModality) -> str:
    """Why a file or folder is in the wrong place; empty if it is not. Classes have depth 1."""
    suffix = child.path.suffix.lower()
    if child.is_other:
        return "a broken link" if not child.path.exists() else "not a regular file"
    if child.is_folder:
        return "a folder in a class folder" if depth > 1 else ""
    if suffix in DICOM_SUFFIXES:
        return f"a DICOM file; convert it to an {modality.noun}, for example with pydicom"
    if depth > 1:
        return "" if suffix in modality.suffixes else f"not an {modality.noun}"
    return f"an {modality.noun} outside a class folder" if suffix in modality.suffixes else ""


def leave_out(strays: Sequence[Stray]) -> None:
    """Add strays to the file ``.afieldignore`` of their folders."""
    folders: dict[Path, list[str]] = {}
    for stray in strays:
        if "\n" in stray.path.name:
            raise DataError(f"{stray.path}: a line break in the name; rename or remove it")
        folders.setdefault(stray.path.parent, []).append(stray.path.name)
    for folder, names in folders.items():
        file = folder / IGNORE_FILE
        try:
            before = _read_ignored(folder) - {""} if file.exists() else set()
            lines = "".join(f"{name}\n" for name in sorted({*before, *names}))
            with atomic_write(file) as temporary:
                temporary.write_bytes(os.fsencode(lines))
        except OSError as error:
            raise DataError(
                f"{file}: cannot be written ({error.strerror}); move the strays elsewhere"
            ) from None
