"""Datasets in tables: CSV, Parquet or JSON lines with a row per sample.

A row has a label, a domain, and the sample itself: an image as bytes, the path of an image, audio
or text file (relative to the table), a text, or numbers and categories. It may also have a split
(train, val or test) and a group. Columns are found by their names and types, or named by the user;
see `table_columns`. Every other column of a table of files, images or texts can group scores
(``--group``).
"""

import hashlib
import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from afield.data.cache import contents_digest
from afield.data.domains import Domain, DomainSet, Reader, ReadOptions, Training
from afield.data.images import read_image
from afield.data.modality import IMAGE, TEXT, FileModality, Modality, Table, Text, modality_of_file
from afield.data.sources.folders import TEXT_TRAINING, DomainFiles, read_files
from afield.data.sources.labeled_files import LabeledFile
from afield.data.sources.table_columns import ColumnChoice, feature_columns
from afield.data.sources.table_files import Column, encode_rows
from afield.data.sources.table_rows import TableRows, read_rows
from afield.errors import DataError
from afield.files import file_digest

__all__ = ["table_dataset"]


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
    identity = [digests, contents, vars(samples.columns)]
    return DomainSet(
        name=path.name.partition(".")[0],
        domains=samples.domains,
        classes=samples.classes,
        reader=reader,
        training=_training(modality),
        origin=str(path),
        fingerprint=hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16],
        modality=modality,
    )


def _training(modality: Modality) -> Training:
    if isinstance(modality, Table):
        return Training(batch=32, backbone="small:mlp")
    return TEXT_TRAINING if isinstance(modality, Text) else Training()


def _kind_of_samples(
    path: Path, parts: Sequence[Path], samples: TableRows
) -> tuple[Modality, Reader, str]:
    """The modality of a table, its reader, and a digest of the files that it names."""
    columns = samples.columns
    if columns.image:
        return IMAGE, partial(_read_images, path, parts, samples), ""
    if columns.path:
        return _listed_files(path, samples)
    if columns.text:
        return TEXT, partial(_read_texts, path, parts, samples), ""
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
    if not file.is_file():
        raise DataError(f"{path}: {cell!r} does not exist in {path.parent}")
    return file


def _one_modality(path: Path, files: Sequence[Path]) -> FileModality:
    modality = modality_of_file(files[0]) or IMAGE
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


def _read_texts(
    path: Path, parts: Sequence[Path], samples: TableRows, options: ReadOptions
) -> dict[str, Domain]:
    column = samples.columns.text
    cells = samples.frame[column].tolist()
    contents = {path / f"row {row}": cell for row, cell in enumerate(cells)}
    files = _entries(samples, list(contents))
    modality = TEXT.with_tokens(options.tokenizer, options.tokens)

    def decode(row: Path) -> NDArray[Any]:
        return modality.tokenize(contents[row])

    selection = f" in column {column} by {samples.columns.domain}"
    domains = read_files(
        path, files, TEXT, options, decode=decode, stated=parts, selection=selection
    )
    return _with_columns(domains, samples, files)


def _read_images(
    path: Path, parts: Sequence[Path], samples: TableRows, options: ReadOptions
) -> dict[str, Domain]:
    column = samples.columns.image
    contents = {path / str(row): cell for row, cell in enumerate(samples.frame[column].tolist())}
    files = _entries(samples, list(contents))
    side = options.side or IMAGE.stored_side(64)

    def decode(row: Path) -> NDArray[Any]:
        cell = contents[row]
        content = cell.get("bytes") if isinstance(cell, Mapping) else cell
        if not isinstance(content, bytes):
            raise ValueError("no image bytes")  # noqa: TRY004  like a broken file
        return read_image(io.BytesIO(content), side)

    # Rows are cached domain by domain.
    selection = f" in column {column} by {samples.columns.domain}"
    domains = read_files(
        path, files, IMAGE, options, decode=decode, stated=parts, selection=selection
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
