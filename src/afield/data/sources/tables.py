"""Datasets in tables: CSV, Parquet or JSON lines with a row per sample.

A row has a label, a domain, and the sample itself: an image as bytes, the path of an image, audio
or text file (relative to the table), a text, or numbers and categories. It may also have a split
(train, val or test) and a group. Columns are found by their names and types, or named by the user;
see `table_columns`. Every other column of a table of files, images or texts can group scores
(``--group``).

    samples.csv?domain=hospital&label=diagnosis

is a table with columns that the user has named; the part after the question mark is the choice.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from afield.data.cache import contents_digest
from afield.data.domains import Domain, DomainSet, Reader, ReadOptions
from afield.data.frames import (
    USUAL_NAMES,
    Column,
    ColumnChoice,
    encode_rows,
    read_frame,
    text_values,
)
from afield.data.modalities.image import Image
from afield.data.modalities.table import Table
from afield.data.modalities.text import Text
from afield.data.modality import FileModality, Modality, modality_of_file
from afield.data.sources.folders import DomainFiles, LabeledFile, read_files
from afield.errors import DataError
from afield.files import file_digest

if TYPE_CHECKING:
    import pandas as pd


# A longer text is no name of a class or domain.
MAX_NAME = 1000
# Columns that number the rows; they are no features.
ROW_NUMBERS = ("id", "index", "row_id", "unnamed: 0")


def find_columns(frame: "pd.DataFrame", choice: ColumnChoice, where: str) -> ColumnChoice:
    """Complete a choice with the columns that are recognized by their names and types."""
    asked = [*choice.kinds.items(), *(("drop", name) for name in choice.dropped)]
    for kind, name in [*asked, *(("column types", name) for name in choice.declared)]:
        if name and name not in frame.columns:
            raise DataError(f"{where}: no column {name!r} ({kind}); it has {_listing(frame)}")
    found: dict[str, str] = {kind: name for kind, name in choice.kinds.items() if name}
    for kind in ("label", "domain", "split", "group"):
        found.setdefault(kind, _usual(frame, kind, found))
    for kind in ("label", "domain"):
        if not found[kind]:
            raise DataError(
                f"{where}: no column with the {kind}; name it with --{kind} COLUMN (the columns "
                f"are {_listing(frame)})"
            )
    if not any(found.get(kind) for kind in ("image", "path", "text")):
        found |= _sample_column(frame, found)
    return replace(choice, **found)


def _sample_column(frame: "pd.DataFrame", found: Mapping[str, str]) -> dict[str, str]:
    """The column with images, paths or text; empty if the samples are numbers."""
    rest = [name for name in frame.columns if name not in found.values()]
    by_name = sorted(rest, key=lambda name: _rank(name, "image"))
    for name in by_name:
        if _holds_bytes(frame[name]):
            return {"image": name}
    for name in sorted(rest, key=lambda name: _rank(name, "path")):
        first = frame[name].dropna().head(1).tolist()
        if first and isinstance(first[0], str) and _is_sample_path(first[0]):
            return {"path": name}
    text = _usual(frame, "text", found)
    return {"text": text} if text and _holds_text(frame[text]) else {}


def feature_columns(frame: "pd.DataFrame", choice: ColumnChoice, where: str) -> tuple[Column, ...]:
    """The columns of a table of numbers and categories, with the different texts of each.

    Whether texts are numbers or categories depends on the sources of a run (`TableScaling`).
    """
    declared = choice.declared
    names = [
        name
        for name in frame.columns
        if name not in choice.names and (name.lower() not in ROW_NUMBERS or name in declared)
    ]
    columns = tuple(_feature(frame[name], declared.get(name, ""), where) for name in names)
    if not columns:
        raise DataError(
            f"{where}: no column with samples; give image bytes, paths of files, texts or numbers "
            f"(the columns are {_listing(frame)})"
        )
    return columns


def _feature(values: "pd.Series[Any]", declared: str, where: str) -> Column:
    import pandas as pd

    name = str(values.name)
    kinds = pd.api.types
    is_number = kinds.is_bool_dtype(values) or kinds.is_numeric_dtype(values)
    if declared != "category" and (is_number or kinds.is_datetime64_any_dtype(values)):
        return Column(name, declared=declared)
    cells = values.dropna().tolist()
    odd = next((cell for cell in cells if not isinstance(cell, str | bool | int | float)), None)
    if odd is not None:
        raise DataError(
            f"{where}: column {name!r} holds {type(odd).__name__} values, neither numbers nor "
            f"categories; convert it, or leave it out with --drop {name}"
        )
    texts = tuple(sorted({str(cell) for cell in cells}))
    return Column(name, texts, text_values(texts), declared)


def _usual(frame: "pd.DataFrame", kind: str, found: Mapping[str, str]) -> str:
    names = [name for name in frame.columns if name not in found.values()]
    usual = [name for name in names if name.lower() in USUAL_NAMES[kind]]
    return min(usual, key=lambda name: _rank(name, kind), default="")


def _rank(name: str, kind: str) -> int:
    usual = USUAL_NAMES[kind]
    return usual.index(name.lower()) if name.lower() in usual else len(usual)


def _holds_bytes(values: "pd.Series[Any]") -> bool:
    first = values.dropna().head(1).tolist()
    return bool(first) and (isinstance(first[0], bytes) or _is_stored_image(first[0]))


def _is_stored_image(cell: Any) -> bool:
    """Whether a cell is an image as the library `datasets` stores it: bytes with a path."""
    return isinstance(cell, dict) and isinstance(cell.get("bytes"), bytes)


def _is_sample_path(text: str) -> bool:
    return modality_of_file(Path(text)) is not None


def _holds_text(values: "pd.Series[Any]") -> bool:
    return bool(np.all([isinstance(cell, str) for cell in values.dropna().head(10)]))


def _listing(frame: "pd.DataFrame", limit: int = 20) -> str:
    names: Sequence[str] = [str(name) for name in frame.columns]
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" * (len(names) > limit))


# What tables call the three splits.
SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}


@dataclass(frozen=True)
class TableRows:
    """The rows of a table: label, domain and split of each as numbers, with their names."""

    frame: "pd.DataFrame"
    columns: ColumnChoice
    classes: tuple[str, ...]
    domains: tuple[str, ...]
    label: NDArray[Any]
    domain: NDArray[Any]
    split: Sequence[str]

    def rows(self, domain: int) -> list[int]:
        """Numbers of the rows of a domain."""
        return [int(row) for row in np.flatnonzero(self.domain == domain)]

    def group_columns(self, rows: Sequence[int], features: Sequence[Column]) -> dict[str, Any]:
        """The columns by which scores can be grouped, as text: all that are not samples."""
        names = [name for name in self.frame.columns if name not in self._sample_columns(features)]
        columns = {str(name): [str(v) for v in self.frame[name].iloc[list(rows)]] for name in names}
        if self.columns.group:
            columns["group"] = columns[self.columns.group]
        return columns

    def _sample_columns(self, features: Sequence[Column]) -> set[str]:
        numbers = {column.name for column in features if column.categories is None}
        chosen = self.columns
        return {chosen.image, chosen.path, chosen.text, chosen.label, *numbers}


@lru_cache(maxsize=1)
def read_rows(
    path: Path, parts: tuple[Path, ...], digests: tuple[str, ...], choice: ColumnChoice
) -> TableRows:
    """The rows of files in this state, which are not read and checked again for every run."""
    import pandas as pd

    del digests
    frames = [read_frame(part) for part in parts]
    if len(parts) > 1:
        frames = [_with_split(frame, part) for frame, part in zip(frames, parts, strict=True)]
    frame = pd.concat(frames, ignore_index=True) if len(frames) > 1 else frames[0]
    columns = find_columns(frame, choice, str(path))
    domains, domain = _names(frame, columns.domain, "domain", path)
    classes, label = _names(frame, columns.label, "label", path)
    if len(domains) < 2:
        raise DataError(f"{path}: only domain {domains[0]!r}; at least two domains are needed")
    if len(classes) < 2:
        raise DataError(f"{path}: only class {classes[0]!r}; at least two classes are needed")
    split = _splits(frame, columns.split, path) if columns.split else []
    return TableRows(frame, columns, classes, domains, label, domain, split)


def _with_split(frame: "pd.DataFrame", part: Path) -> "pd.DataFrame":
    """Add the split that the name of a file on the hub states: train-00000-of-00002.parquet."""
    split = SPLITS.get(part.name.partition("-")[0].lower())
    if split is None or "split" in map(str.lower, frame.columns):
        return frame
    return frame.assign(split=split)


def _names(
    frame: "pd.DataFrame", column: str, kind: str, path: Path
) -> tuple[tuple[str, ...], NDArray[Any]]:
    """The names in a column of labels or domains, sorted, and the index of each row's name."""
    import pandas as pd

    values = frame[column]
    gone = np.flatnonzero(values.isna())
    if len(gone):
        raise DataError(
            f"{path}: row {gone[0]} has no {kind} ({len(gone)} rows in column {column!r}; empty "
            "cells, NA and None count as missing)"
        )
    if pd.api.types.is_float_dtype(values):
        raise DataError(
            f"{path}: column {column!r} ({kind}) holds fractions such as {values.iloc[0]}; give "
            "names or whole numbers"
        )
    cells = values.tolist()
    if not all(isinstance(cell, str | int) for cell in cells):
        raise DataError(f"{path}: column {column!r} ({kind}) must hold names or whole numbers")
    if all(isinstance(cell, int) for cell in cells):
        unique, index = np.unique(np.array(cells), return_inverse=True)
        return tuple(str(name) for name in unique.tolist()), index
    texts = [str(cell) for cell in cells]
    # Not numpy's unique: all its texts take as much memory as the longest one.
    names = sorted(set(texts))
    long = next((name for name in names if len(name) > MAX_NAME), None)
    if long is not None:
        raise DataError(
            f"{path}: a {kind} in column {column!r} has {len(long):,} characters, above "
            f"{MAX_NAME}; name the column of {kind}s with --{kind} COLUMN"
        )
    numbers = {name: number for number, name in enumerate(names)}
    return tuple(names), np.array([numbers[text] for text in texts])


def _splits(frame: "pd.DataFrame", column: str, path: Path) -> list[str]:
    given = [str(cell).lower() for cell in frame[column].tolist()]
    unknown = [cell for cell in given if cell not in SPLITS]
    if unknown:
        raise DataError(
            f"{path}: column {column!r} (split) holds {unknown[0][:100]!r}; write train, "
            "val or test"
        )
    splits = [SPLITS[cell] for cell in given]
    if "test" not in splits:
        # The field tests on the validation list if there is no other.
        splits = ["test" if split == "val" else split for split in splits]
    return splits if len(set(splits)) > 1 else []


def table_dataset(
    path: Path, choice: ColumnChoice, *, files: Sequence[Path] = (), spec: str = "", name: str = ""
) -> DomainSet:
    """Dataset of a table, or of a table in several files.

    Parameters
    ----------
    path
        The file, or the folder that contains the `files`.
    choice
        The columns that the user has named.
    files
        The parts of the table, if there are several.
    spec, name
        With what `find_dataset` finds the dataset again, and what results call it; by default the
        path and its name.
    """
    path = path.resolve()
    parts = tuple(files or (path,))
    digests = tuple(file_digest(part) for part in parts)
    found = _dataset(path, parts, digests, choice)
    return replace(found, origin=(spec or str(path)) + choice.query, name=name or found.name)


def _dataset(
    path: Path, parts: tuple[Path, ...], digests: tuple[str, ...], choice: ColumnChoice
) -> DomainSet:
    samples = read_rows(path, parts, digests, choice)
    modality, reader, contents = _kind_of_samples(path, parts, samples)
    chosen = samples.columns
    # Types and dropped columns were added later: without them, a table is known as before.
    said = {name: value for name in ("types", "drop") if (value := getattr(chosen, name))}
    identity = [digests, contents, {**chosen.kinds, **said}]
    return DomainSet(
        name=path.name.partition(".")[0],
        domains=samples.domains,
        classes=samples.classes,
        reader=reader,
        training=modality.training,
        origin=str(path),
        fingerprint=hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16],
        modality=modality,
    )


def _kind_of_samples(
    path: Path, parts: Sequence[Path], samples: TableRows
) -> tuple[Modality, Reader, str]:
    """The modality of a table, its reader, and a digest of the files that it names."""
    columns = samples.columns
    if columns.path and not columns.image:
        return _listed_files(path, samples)
    if columns.image or columns.text:
        cells = Image() if columns.image else Text()
        return cells, partial(_read_cells, path, parts, samples, cells), ""
    features = feature_columns(samples.frame, columns, str(path))
    rows = encode_rows(samples.frame, features, str(path))
    return Table(features), partial(_read_numbers, samples, features, rows), ""


def _read_numbers(
    samples: TableRows, features: Sequence[Column], x: NDArray[np.float32], options: ReadOptions
) -> dict[str, Domain]:
    del options
    domains = {}
    for number, name in enumerate(samples.domains):
        rows = samples.rows(number)
        splits = [samples.split[row] for row in rows] if samples.split else []
        domains[name] = Domain(
            x=torch.from_numpy(x[rows]),
            y=torch.from_numpy(samples.label[rows]),
            test=torch.tensor([split == "test" for split in splits]) if splits else None,
            validation=_validation(splits),
            names=[str(row) for row in rows],
            columns=samples.group_columns(rows, features),
        )
    return domains


def _validation(splits: Sequence[str]) -> torch.Tensor | None:
    return torch.tensor([split == "val" for split in splits]) if "val" in splits else None


def _listed_files(path: Path, samples: TableRows) -> tuple[Modality, Reader, str]:
    column = samples.columns.path
    named = [_checked(path, cell) for cell in samples.frame[column].tolist()]
    twice = next((file for file, count in Counter(named).items() if count > 1), None)
    if twice is not None:
        raise DataError(f"{path}: {twice.name} is in two rows of column {column!r}")
    files = _entries(samples, named)
    modality = _one_modality(path, named)
    read = partial(_read_listed, path, samples, files, modality)
    return modality, read, contents_digest(path.parent, [path, *named])


def _checked(path: Path, cell: Any) -> Path:
    """The file that a cell names, which must be in the folder of the table."""
    if not isinstance(cell, str) or not cell:
        raise DataError(f"{path}: a row has no path; remove it")
    if Path(cell).is_absolute() or ".." in Path(cell).parts:
        raise DataError(
            f"{path}: {cell!r} leaves the folder of the table; give paths relative to it"
        )
    file = path.parent / cell
    try:
        exists = file.is_file()
    except OSError:  # its name is too long
        exists = False
    if not exists:
        raise DataError(f"{path}: {cell[:100]!r} does not exist in {path.parent}")
    return file


def _one_modality(path: Path, files: Sequence[Path]) -> FileModality:
    modality = modality_of_file(files[0]) or Image()
    other = next((file for file in files if file.suffix.lower() not in modality.suffixes), None)
    if other is not None:
        suffixes = ", ".join(modality.suffixes)
        raise DataError(f"{path}: {other.name} is not an {modality.noun} ({suffixes})")
    return modality


def _entries(samples: TableRows, files: Sequence[Path]) -> dict[str, list[LabeledFile]]:
    entries: dict[str, list[LabeledFile]] = {}
    for number, name in enumerate(samples.domains):
        entries[name] = [
            LabeledFile(
                files[row],
                int(samples.label[row]),
                samples.split[row] == "test" if samples.split else None,
                bool(samples.split) and samples.split[row] == "val",
            )
            for row in samples.rows(number)
        ]
    return entries


def _read_listed(
    path: Path, samples: TableRows, files: DomainFiles, modality: FileModality, options: ReadOptions
) -> dict[str, Domain]:
    domains = read_files(path.parent, files, modality, options, selection=f" in {path.name}")
    return _with_columns(domains, samples, files)


def _read_cells(
    path: Path,
    parts: Sequence[Path],
    samples: TableRows,
    modality: Image | Text,
    options: ReadOptions,
) -> dict[str, Domain]:
    """Read samples that the cells of a column hold themselves."""
    column = samples.columns.image or samples.columns.text
    name = "" if samples.columns.image else "row "
    cells = {path / f"{name}{i}": cell for i, cell in enumerate(samples.frame[column].tolist())}
    files = _entries(samples, list(cells))
    side = options.side or modality.stored_side(64)
    modality = modality.with_tokens(options.tokenizer, options.tokens)
    domains = read_files(
        path,
        files,
        modality,
        options,
        decode=lambda file: modality.decode_cell(cells[file], side),
        stated=parts,
        # Rows are cached domain by domain.
        selection=f" in column {column} by {samples.columns.domain}",
    )
    return _with_columns(domains, samples, files)


def _with_columns(
    domains: Mapping[str, Domain], samples: TableRows, files: DomainFiles
) -> dict[str, Domain]:
    """Add the other columns of the rows whose samples could be read."""
    complete = {}
    for number, (name, domain) in enumerate(domains.items()):
        pairs = zip(files[name], samples.rows(number), strict=True)
        broken = {file.rpartition("/")[2]: file for file in domain.broken}
        rows = [row for entry, row in pairs if not _is_broken(entry.file, broken)]
        complete[name] = replace(domain, columns=samples.group_columns(rows, ()))
    return complete


def _is_broken(file: Path, broken: Mapping[str, str]) -> bool:
    return file.name in broken and str(file).endswith(broken[file.name])
