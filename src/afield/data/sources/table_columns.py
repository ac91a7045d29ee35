"""Which column of a table holds what: named by the user, or found by its name and type.

    samples.csv?domain=hospital&label=diagnosis

is a table with columns that the user has named; the part after the question mark is the choice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode

import numpy as np

from afield.data.modality import modality_of_file
from afield.data.sources.table_files import Column
from afield.errors import DataError, SpecError
from afield.registry import hint

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ColumnChoice", "feature_columns", "find_columns", "name_columns", "split_spec"]

# Names that a column of each kind usually has, in order of preference.
USUAL_NAMES = {
    "label": ("label", "labels", "class", "y", "target", "fine_label"),
    "domain": ("domain", "domains", "environment", "env", "site", "hospital", "center", "style"),
    "split": ("split",),
    "group": ("group",),
    "image": ("image", "img", "picture", "photo"),
    "path": ("path", "file", "file_name", "filename", "filepath", "image_path", "audio_path"),
    "text": ("text", "sentence", "document", "review"),
}
# Columns that number the rows; they are no features.
ROW_NUMBERS = ("id", "index", "row_id", "unnamed: 0")
# More categories than this are names of rows or free text.
MAX_CATEGORIES = 256


@dataclass(frozen=True)
class ColumnChoice:
    """The column of each kind; empty means that the table has none, or that it is yet to be found.

    A table has one kind of samples: images as bytes in `image`, files that are named in `path`,
    `text`, or else the numbers and categories of all other columns.
    """

    label: str = ""
    domain: str = ""
    split: str = ""
    group: str = ""
    image: str = ""
    path: str = ""
    text: str = ""

    @property
    def query(self) -> str:
        """The choice as the end of a dataset's name; empty if nothing is chosen."""
        chosen = {name: value for name, value in sorted(asdict(self).items()) if value}
        return f"?{urlencode(chosen)}" if chosen else ""

    @property
    def names(self) -> tuple[str, ...]:
        """All columns that are not features."""
        return tuple(filter(None, asdict(self).values()))


def split_spec(spec: str) -> tuple[str, ColumnChoice]:
    """Separate the path of a table from the columns that are named after a question mark.

    >>> split_spec("samples.csv?label=diagnosis")[1].label
    'diagnosis'
    """
    path, mark, query = spec.rpartition("?")
    if not mark:
        return spec, ColumnChoice()
    chosen = dict(parse_qsl(query, keep_blank_values=True))
    known = [each.name for each in fields(ColumnChoice)]
    unknown = [name for name in chosen if name not in known]
    if unknown or not chosen:
        name = unknown[0] if unknown else query
        raise SpecError(f"{spec}: no kind of column {name!r}; {hint(name, known)}")
    return path, ColumnChoice(**chosen)


def name_columns(spec: str, **chosen: str) -> str:
    """The name of a dataset with these columns chosen; an empty choice changes nothing.

    >>> name_columns("samples.csv", label="diagnosis", domain="")
    'samples.csv?label=diagnosis'
    """
    given = {kind: name for kind, name in chosen.items() if name}
    if not given:
        return spec
    path, choice = split_spec(spec)
    return path + replace(choice, **given).query


def find_columns(frame: "pd.DataFrame", choice: ColumnChoice, where: str) -> ColumnChoice:
    """Complete a choice with the columns that are recognized by their names and types."""
    for kind, name in asdict(choice).items():
        if name and name not in frame.columns:
            raise DataError(f"{where}: no column {name!r} ({kind}); it has {_listing(frame)}")
    found: dict[str, str] = {kind: name for kind, name in asdict(choice).items() if name}
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
    return ColumnChoice(**found)


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
    """The columns of a table of numbers and categories, with the categories in the table."""
    names = [
        name
        for name in frame.columns
        if name not in choice.names and name.lower() not in ROW_NUMBERS
    ]
    columns = tuple(_feature(frame[name], where) for name in names)
    if not columns:
        raise DataError(
            f"{where}: no column with samples; give image bytes, paths of files, texts or numbers "
            f"(the columns are {_listing(frame)})"
        )
    return columns


def _feature(values: "pd.Series[Any]", where: str) -> Column:
    import pandas as pd

    name = str(values.name)
    if pd.api.types.is_bool_dtype(values) or pd.api.types.is_numeric_dtype(values):
        return Column(name)
    cells = values.dropna().unique().tolist()
    if not all(isinstance(cell, str | bool | int) for cell in cells):
        kind = type(next(c for c in cells if not isinstance(c, str | bool | int))).__name__
        raise DataError(
            f"{where}: column {name!r} holds {kind} values, neither numbers nor categories; "
            "convert or remove it"
        )
    if len(cells) > MAX_CATEGORIES:
        raise DataError(
            f"{where}: column {name!r} has {len(cells)} different texts, too many for categories; "
            "remove it"
        )
    return Column(name, tuple(sorted({str(cell) for cell in cells})))


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
