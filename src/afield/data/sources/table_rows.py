"""The rows of a table: their labels, domains and splits, checked."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from afield.data.sources.table_columns import ColumnChoice, find_columns
from afield.data.sources.table_files import Column, read_frame
from afield.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["TableRows", "read_rows"]

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
    whole = all(isinstance(cell, int) for cell in cells)
    unique, index = np.unique(np.array(cells if whole else [*map(str, cells)]), return_inverse=True)
    return tuple(str(name) for name in unique.tolist()), index


def _splits(frame: "pd.DataFrame", column: str, path: Path) -> list[str]:
    given = [str(cell).lower() for cell in frame[column].tolist()]
    unknown = [cell for cell in given if cell not in SPLITS]
    if unknown:
        raise DataError(
            f"{path}: column {column!r} (split) holds {unknown[0]!r}; write train, val or test"
        )
    splits = [SPLITS[cell] for cell in given]
    if "test" not in splits:
        # The field tests on the validation list if there is no other.
        splits = ["test" if split == "val" else split for split in splits]
    return splits if len(set(splits)) > 1 else []
