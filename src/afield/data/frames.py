"""Tables on disk (CSV, Parquet, JSON lines) as data frames, and their rows as numbers.

CSV and JSON lines may be compressed (``.csv.gz``). Parquet needs pyarrow, which is an extra:
``pip install 'afield[parquet]'``.
"""

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode

import numpy as np
from numpy.typing import NDArray

from afield.compute import machine_memory
from afield.errors import DataError, SpecError
from afield.files import check_regular_file
from afield.registry import hint

if TYPE_CHECKING:
    import pandas as pd


TABLE_SUFFIXES = (".csv", ".csv.gz", ".parquet", ".jsonl", ".jsonl.gz")
# Rows that `read_frames` yields at once.
ROWS_AT_ONCE = 1000
# A cell of a data frame takes at least this much memory.
CELL_BYTES = 8
# A date, perhaps with a time.
DATE_FORM = r"\d{4}-\d{2}-\d{2}(?:[T ].*)?$"
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


@dataclass(frozen=True)
class Column:
    """A column of features: its name, and its different texts unless all its cells are numbers.

    `values` are the numbers that the texts stand for, NaN where a text is neither a number nor a
    date. `declared` is ``number`` or ``category`` if the user has said what the column is. With
    `lenient`, a cell that is not a number counts as missing.
    """

    name: str
    categories: tuple[str, ...] | None = None
    values: tuple[float, ...] = ()
    declared: str = ""
    lenient: bool = False


@dataclass(frozen=True)
class ColumnChoice:
    """The column of each kind; empty means that the table has none, or that it is yet to be found.

    A table has one kind of samples: images as bytes in `image`, files that are named in `path`,
    `text`, or else the numbers and categories of all other columns. Of these, `types` says which
    are what (``age=number,thal=category``), and `drop` names those that are left out.
    """

    label: str = ""
    domain: str = ""
    split: str = ""
    group: str = ""
    image: str = ""
    path: str = ""
    text: str = ""
    types: str = ""
    drop: str = ""

    @property
    def query(self) -> str:
        """The choice as the end of a dataset's name; empty if nothing is chosen."""
        chosen = {name: value for name, value in sorted(asdict(self).items()) if value}
        return f"?{urlencode(chosen)}" if chosen else ""

    @property
    def names(self) -> tuple[str, ...]:
        """All columns that are not features."""
        return (*(name for name in self.kinds.values() if name), *self.dropped)

    @property
    def kinds(self) -> dict[str, str]:
        """The column of every kind, by the kind."""
        return {kind: name for kind, name in asdict(self).items() if kind not in ("types", "drop")}

    @property
    def dropped(self) -> tuple[str, ...]:
        """The columns that are left out by hand."""
        return tuple(name.strip() for name in self.drop.split(",") if name.strip())

    @property
    def declared(self) -> dict[str, str]:
        """What columns are said to be: ``number`` or ``category``, by their names."""
        pairs = [pair.rpartition("=") for pair in self.types.split(",") if pair.strip()]
        for name, _, kind in pairs:
            if kind.strip() not in ("number", "category") or not name.strip():
                raise SpecError(
                    f"--column-types {self.types}: write NAME=number or NAME=category, separated "
                    "by commas"
                )
        return {name.strip(): kind.strip() for name, _, kind in pairs}


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


def is_table(path: Path) -> bool:
    """Whether the name of a file ends like that of a table."""
    return path.name.lower().endswith(TABLE_SUFFIXES)


def read_frame(path: Path) -> "pd.DataFrame":
    """Read a table; class indices whose names the file states become these names."""
    import pandas as pd

    try:
        check_regular_file(path)
        frame = _reader(path)(path)
    except pd.errors.EmptyDataError:
        raise DataError(f"{path}: empty; the first line must name the columns") from None
    except (OSError, EOFError, zlib.error, MemoryError) as error:
        reason = " ".join(str(error).split())[:160]
        raise DataError(f"{path}: cannot be read ({reason})") from None
    except (ValueError, TypeError, KeyError, NotImplementedError, OverflowError) as error:
        reason = " ".join(str(error).split())[:160]
        raise DataError(f"{path}: not a readable table ({reason})") from None
    twice = frame.columns[frame.columns.duplicated()]
    if len(twice):
        raise DataError(f"{path}: two columns are called {twice[0]!r}; rename one")
    if not len(frame):
        raise DataError(f"{path}: no rows")
    return frame.rename(columns=str)


def encode_rows(
    frame: "pd.DataFrame", columns: Sequence[Column], where: str
) -> NDArray[np.float32]:
    """Rows × columns as numbers: NaN for a missing value, and the index of each category.

    A category that is not listed has the index -1.
    """
    missing = [column.name for column in columns if column.name not in frame.columns]
    if missing:
        known = ", ".join(map(str, frame.columns[:20]))
        raise DataError(f"{where}: no column {missing[0]!r}; it has {known}")
    encoded = np.empty((len(frame), len(columns)), np.float32)
    for i, column in enumerate(columns):
        encode = _numbers if column.categories is None else _codes
        encoded[:, i] = encode(frame[column.name], column, where)
    return encoded


def _numbers(values: "pd.Series[Any]", column: Column, where: str) -> NDArray[np.float64]:
    import pandas as pd

    if pd.api.types.is_datetime64_any_dtype(values):
        values = _days(values)
    elif column.lenient and not pd.api.types.is_numeric_dtype(values):
        texts = values.astype("string")
        values = pd.Series(text_values(texts.fillna("").tolist()), index=values.index)
    try:
        numbers = pd.to_numeric(values).to_numpy(dtype=np.float64, na_value=np.nan)
    except (TypeError, ValueError, OverflowError):
        raise DataError(f"{where}: column {column.name!r} must hold numbers") from None
    with np.errstate(over="ignore"):
        infinite = np.isinf(numbers.astype(np.float32))
    if infinite.any():
        row = int(np.flatnonzero(infinite)[0])
        raise DataError(
            f"{where}: row {row} of column {column.name!r} is infinite or too large; leave the "
            "cell empty, or remove the row"
        )
    return numbers


def text_values(texts: Sequence[str]) -> tuple[float, ...]:
    """The numbers that texts stand for: numbers, or the days of dates such as 2024-05-31.

    NaN stands for a text that is neither.

    >>> text_values(["1.5", "1970-01-02", "n/d"])
    (1.5, 1.0, nan)
    """
    import pandas as pd

    plain = pd.Series(list(texts), dtype=object).astype(str).str.strip()
    numbers = pd.to_numeric(plain, errors="coerce").astype(float)
    dates = plain.where(plain.str.match(DATE_FORM))
    days = _days(pd.to_datetime(dates, format="ISO8601", errors="coerce", utc=True))
    values = numbers.where(np.isfinite(numbers), days)
    return tuple(float(value) for value in values)


def _days(dates: "pd.Series[Any]") -> "pd.Series[float]":
    """Days since 1970, with fractions."""
    import pandas as pd

    if dates.dt.tz is not None:
        dates = dates.dt.tz_convert("UTC").dt.tz_localize(None)
    return (dates - pd.Timestamp("1970-01-01")) / pd.Timedelta(days=1)


def _codes(values: "pd.Series[Any]", column: Column, where: str) -> NDArray[np.float64]:
    del where
    index = {category: float(i) for i, category in enumerate(column.categories or ())}
    cells = zip(values.tolist(), values.isna().tolist(), strict=True)
    return np.array([np.nan if gone else index.get(str(cell), -1.0) for cell, gone in cells])


def _reader(path: Path) -> Any:
    name = path.name.lower()
    if name.endswith(".parquet"):
        return _read_parquet
    return _read_csv if name.endswith((".csv", ".csv.gz")) else _read_jsonl


def _read_csv(path: Path) -> "pd.DataFrame":
    import pandas as pd

    # utf-8-sig: some editors write a byte order mark, which is not part of the first name.
    return pd.read_csv(path, encoding="utf-8-sig", low_memory=False)


def _read_jsonl(path: Path) -> "pd.DataFrame":
    import pandas as pd

    rows = []
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise DataError(f"{path}: line {number} is not JSON ({error})") from None
            if not isinstance(row, dict):
                raise DataError(f"{path}: line {number} is not an object with named values")
            rows.append(row)
    return pd.DataFrame(rows)


def read_frames(path: Path) -> "Iterator[pd.DataFrame]":
    """The rows of a table in parts: a Parquet file of images may be larger than the memory."""
    if path.suffix != ".parquet":
        yield read_frame(path)
        return
    _require_pyarrow(path)
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(path) as file:
        for rows in file.iter_batches(ROWS_AT_ONCE):
            yield _name_classes(rows.to_pandas(), file.schema_arrow.metadata, path)


def _read_parquet(path: Path) -> "pd.DataFrame":
    _require_pyarrow(path)
    import pyarrow.parquet

    # A column of equal values takes a few bytes in the file, and gigabytes in memory.
    facts = pyarrow.parquet.read_metadata(path)
    needed = facts.num_rows * facts.num_columns * CELL_BYTES
    if needed > machine_memory():
        raise DataError(
            f"{path}: {facts.num_rows} rows of {facts.num_columns} columns do not fit into the "
            "memory of this machine; give fewer"
        )
    table = pyarrow.parquet.read_table(path)
    try:
        frame = table.to_pandas()
    except Exception as error:  # noqa: BLE001  odd metadata of pandas raises nearly anything
        reason = " ".join(str(error).split())[:120]
        raise DataError(f"{path}: cannot be read as a data frame ({reason})") from None
    return _name_classes(frame, table.schema.metadata, path)


def _require_pyarrow(path: Path) -> None:
    if find_spec("pyarrow") is None:
        raise SpecError(f"{path}: Parquet needs pyarrow; try: pip install 'afield[parquet]'")


def _name_classes(
    frame: "pd.DataFrame", metadata: Mapping[bytes, bytes] | None, path: Path
) -> "pd.DataFrame":
    """The frame with the names of classes that the metadata states."""
    for name, classes in _stated_classes(metadata or {}).items():
        if name in frame.columns:
            frame[name] = _with_names(frame[name], classes, f"{path}: column {name!r}")
    return frame


def _with_names(values: "pd.Series[Any]", classes: Sequence[str], where: str) -> "pd.Series[Any]":
    """Replace the indices of classes by their names; -1 stands for a missing label on the hub."""
    import pandas as pd

    present, kinds = values.dropna(), pd.api.types
    if not len(present) or kinds.is_string_dtype(present):
        return values
    if kinds.is_bool_dtype(present) or not kinds.is_numeric_dtype(present) or any(present % 1 != 0):
        raise DataError(f"{where} must hold the indices of classes that its metadata names")
    outside = [value for value in values.dropna().unique() if not -1 <= value < len(classes)]
    if outside:
        raise DataError(f"{where} holds {outside[0]}, but names only {len(classes)} classes")
    return values.map(dict(enumerate(classes)))


def _stated_classes(metadata: Mapping[bytes, bytes]) -> dict[str, list[str]]:
    """Names of the classes in the metadata that the library `datasets` writes into Parquet."""
    try:
        features = json.loads(metadata[b"huggingface"])["info"]["features"]
        kinds = {name: dict(kind) for name, kind in features.items() if isinstance(kind, dict)}
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return {}
    labels = {name: kind for name, kind in kinds.items() if kind.get("_type") == "ClassLabel"}
    stated = {name: kind.get("names") for name, kind in labels.items()}
    # Without a list of names, the indices stay what they are.
    return {
        name: [str(each) for each in names]
        for name, names in stated.items()
        if names and isinstance(names, list)
    }
