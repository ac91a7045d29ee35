"""Prompts for CLIP: readable names of the classes, in sentences.

A class is a folder name or an abbreviation, such as ``n01443537`` or ``MEL``; CLIP needs words. A
dataset states the words (`DomainSet.class_names`) and the sentences (`DomainSet.templates`) where
folder names and "a photo of a {}." do not suit it. Files give them for your own folders:

    class names   CSV with the columns class and name; classes without a row keep their own name
    templates     one sentence per line, with {} in the place of the name
"""

import csv
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from afield.data.domains import DomainSet
from afield.errors import DataError
from afield.files import read_text

DEFAULT_TEMPLATES = (
    "a photo of a {}.",
    "a photo of the {}.",
    "a picture of a {}.",
    "an image of a {}.",
)


@dataclass(frozen=True)
class Prompts(Sequence[str]):
    """The name of every class, and the sentences that each name is put into.

    It is a sequence of the names.
    """

    names: tuple[str, ...]
    templates: tuple[str, ...] = DEFAULT_TEMPLATES

    @classmethod
    def of_classes(cls, classes: Sequence[str]) -> "Prompts":
        """The prompts of classes whose own names are readable."""
        return cls(tuple(name.replace("_", " ") for name in classes))

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: Any) -> Any:
        return self.names[index]

    def sentences(self, number: int) -> list[str]:
        """All sentences about one class.

        >>> Prompts(("dog",), ("a photo of a {}.", "a {}.")).sentences(0)
        ['a photo of a dog.', 'a dog.']
        """
        return [template.replace("{}", self.names[number]) for template in self.templates]

    @property
    def digest(self) -> str:
        """What changes with the prompts."""
        return hashlib.sha256(json.dumps([self.names, self.templates]).encode()).hexdigest()[:16]


def dataset_prompts(dataset: DomainSet, class_names: str = "", templates: str = "") -> Prompts:
    """The prompts of a dataset, or those of files that replace its names and templates."""
    plain = Prompts.of_classes(dataset.classes)
    own = _read_names(Path(class_names), dataset) if class_names else dataset.class_names
    names = zip(dataset.classes, plain.names, strict=True)
    return Prompts(
        names=tuple(own.get(folder, readable) for folder, readable in names),
        templates=_read_templates(Path(templates))
        if templates
        else dataset.templates or DEFAULT_TEMPLATES,
    )


def _read_names(path: Path, dataset: DomainSet) -> dict[str, str]:
    rows = list(csv.DictReader(_read_lines(path)))
    if not rows or not {"class", "name"} <= set(rows[0]):
        found = ", ".join(rows[0]) if rows else "no rows"
        raise DataError(f"{path}: needs a header with the columns class and name; it has {found}")
    names = {row["class"]: (row["name"] or "").strip() for row in rows}
    for folder, name in names.items():
        if folder not in dataset.classes:
            raise DataError(f"{path}: {folder!r} is not a class of {dataset.name}")
        if not name:
            raise DataError(f"{path}: no name for the class {folder!r}")
    return names


def _read_templates(path: Path) -> tuple[str, ...]:
    templates = tuple(line.strip() for line in _read_lines(path) if line.strip())
    wrong = next((text for text in templates if text.count("{}") != 1), None)
    if wrong is not None or not templates:
        found = f"not {wrong!r}" if wrong is not None else "it is empty"
        raise DataError(f"{path}: every line needs {{}} once, for the name; {found}")
    return templates


def _read_lines(path: Path) -> list[str]:
    try:
        return read_text(path, encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from None
