"""Predictions of a model, and the files and tables that they are written to.

Predictions are written as CSV, JSON lines or Parquet, one row per sample, as they arrive::

    file, [id,] class, confidence, distance, percentile, strangeness, [set, set_worst,] [abstain,]
    error [, a column for every class]

An output file is complete or absent.
"""

import csv
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from afield.deployment.prediction_sets import select_classes
from afield.errors import SpecError
from afield.files import FORMULA_PREFIXES, atomic_write, escape_controls, guard_formula

OUTPUT_SUFFIXES = (".csv", ".jsonl", ".parquet")
# The number of rows of a Parquet file that are written at once.
ROW_GROUP_SIZE = 4096
# Prediction sets: for the mean over held-out domains, and for the worst of them.
SET_COLUMNS = ("set", "set_worst")
# Between the classes of a set where a cell is a text.
SET_SEPARATOR = " | "

Row = dict[str, Any]


@dataclass(frozen=True)
class Prediction:
    """The prediction for one sample, or the `error` if the sample could not be read.

    `distance`, `percentile` and `strangeness` are None if the model folder does not have them.
    `too_far` is whether the sample is farther from the training data than every held-out one.
    `row_id` is what a table calls its row.
    """

    file: str
    label: str = ""
    confidence: float | None = None
    distance: float | None = None
    percentile: float | None = None
    probabilities: tuple[float, ...] = ()
    strangeness: float | None = None
    too_far: bool = False
    error: str = ""
    row_id: str | None = None


@dataclass(frozen=True)
class Columns:
    """The columns of a table of predictions.

    `threshold` adds the column abstain, and `classes` a column of probabilities for each class.
    `sets` are the names of all classes and the two thresholds of prediction sets, which add the
    columns set and set_worst.
    With `ids`, the column id has the names of the rows of a table.
    Abstain if the confidence is below the threshold, or if the sample is farther from the training
    data than every held-out one: confidences were never tested there.
    """

    threshold: float | None = None
    classes: tuple[str, ...] = ()
    sets: tuple[tuple[str, ...], tuple[float, float]] | None = None
    ids: bool = False

    @property
    def names(self) -> list[str]:
        """The names of the columns, in order."""
        chosen = [
            *(SET_COLUMNS if self.sets else ()),
            *([] if self.threshold is None else ["abstain"]),
        ]
        fixed = ["class", "confidence", "distance", "percentile", "strangeness"]
        fixed = ["file", *(["id"] if self.ids else []), *fixed]
        return [*fixed, *chosen, "error", *(f"p({name})" for name in self.classes)]

    def row(self, prediction: Prediction) -> Row:
        """The cells of one prediction, by column name."""
        row: Row = {
            "file": safe_name(prediction.file),
            **({"id": prediction.row_id} if self.ids else {}),
            "class": prediction.label or None,
            "confidence": prediction.confidence,
            "distance": prediction.distance,
            "percentile": prediction.percentile,
            "strangeness": prediction.strangeness,
        }
        if self.sets is not None:
            row |= zip(SET_COLUMNS, _sets(prediction, *self.sets), strict=True)
        if self.threshold is not None:
            row["abstain"] = _abstain(prediction, self.threshold)
        row["error"] = prediction.error or None
        probabilities = prediction.probabilities or [None] * len(self.classes)
        pairs = zip(self.classes, probabilities, strict=False)
        return {**row, **{f"p({name})": value for name, value in pairs}}


def _sets(
    prediction: Prediction, classes: Sequence[str], thresholds: Sequence[float]
) -> list[list[str] | None]:
    """The classes in the sets for several thresholds, the most probable first."""
    if not prediction.probabilities:
        return [None] * len(thresholds)
    chosen = [select_classes(prediction.probabilities, each) for each in thresholds]
    return [[classes[index] for index in indices] for indices in chosen]


def _abstain(prediction: Prediction, threshold: float) -> bool | None:
    if prediction.confidence is None:
        return None
    return prediction.too_far or prediction.confidence < threshold


def safe_name(file: str) -> str:
    """Make a file name encodable and printable, and no formula of a spreadsheet.

    >>> safe_name("=1+1.png")
    './=1+1.png'
    """
    name = escape_controls(os.fsencode(file).decode("utf-8", "backslashreplace"))
    return f"./{name}" if name.startswith(FORMULA_PREFIXES) else name


def check_output_file(out: Path) -> None:
    """Raise before any work if predictions cannot be written to a file."""
    if out.suffix not in OUTPUT_SUFFIXES:
        raise SpecError(
            f"{out}: unknown format of predictions; use a suffix of {', '.join(OUTPUT_SUFFIXES)}"
        )
    if out.suffix == ".parquet":
        _pyarrow()


def write_predictions(predictions: Iterable[Prediction], out: Path, columns: Columns) -> None:
    """Write predictions to a file, in the format of its suffix."""
    check_output_file(out)
    writers = {".csv": _write_csv, ".jsonl": _write_json_lines, ".parquet": _write_parquet}
    rows = (columns.row(prediction) for prediction in predictions)
    try:
        with atomic_write(out, durable=True) as temporary:
            writers[out.suffix](rows, temporary, columns)
    except OSError as error:
        raise SpecError(
            f"{out}: cannot be written ({error.strerror}); give another --out"
        ) from None


def csv_lines(rows: Iterable[Row], columns: Columns) -> Iterator[str]:
    """The lines of a CSV file, starting with its header."""
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    for cells in _with_header(rows, columns.names):
        writer.writerow(cells)
        yield buffer.getvalue()
        buffer.seek(0)
        buffer.truncate()


def _with_header(rows: Iterable[Row], names: Sequence[str]) -> Iterator[list[Any]]:
    yield list(names)
    for row in rows:
        yield [_cell(row[name]) for name in names]


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.8g}"
    if isinstance(value, list):
        value = SET_SEPARATOR.join(value)
    return guard_formula(escape_controls(value) if isinstance(value, str) else value)


def _write_csv(rows: Iterable[Row], path: Path, columns: Columns) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        file.writelines(csv_lines(rows, columns))


def _write_json_lines(rows: Iterable[Row], path: Path, columns: Columns) -> None:
    del columns
    with path.open("w", encoding="utf-8", newline="") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _write_parquet(rows: Iterable[Row], path: Path, columns: Columns) -> None:
    arrow, parquet = _pyarrow()
    types: Mapping[str, Callable[[], Any]] = {
        "file": arrow.string,
        "id": arrow.string,
        "class": arrow.string,
        "error": arrow.string,
        "abstain": arrow.bool_,
        **dict.fromkeys(SET_COLUMNS, lambda: arrow.list_(arrow.string())),
    }
    schema = arrow.schema([(name, types.get(name, arrow.float64)()) for name in columns.names])
    remaining = iter(rows)
    with parquet.ParquetWriter(path, schema) as writer:
        while group := list(islice(remaining, ROW_GROUP_SIZE)):
            writer.write_table(arrow.Table.from_pylist(group, schema=schema))


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise SpecError(
            f"Parquet needs the package pyarrow ({error}); pip install 'afield[parquet]'"
        ) from None
    return pyarrow, pyarrow.parquet
