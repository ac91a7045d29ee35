"""Predictions as CSV, JSON lines or Parquet: one row a sample, written as they come.

    file, class, confidence, distance, percentile, [abstain,] error [, a column for every class]

A file is there at the end whole, or not at all.
"""

import csv
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from afield.deployment.model import Prediction
from afield.errors import SpecError
from afield.files import atomic_write

__all__ = ["OUTPUT_SUFFIXES", "Columns", "check_output_file", "csv_lines", "write_predictions"]

OUTPUT_SUFFIXES = (".csv", ".jsonl", ".parquet")
# What a spreadsheet would take for a formula.
FORMULA_PREFIXES = ("=", "+", "-", "@", "\t", "\r")
# The percentile of what lies further away than all that was held out.
OUT_OF_RANGE_PERCENTILE = 100
# Rows of a Parquet file that are written at once.
ROW_GROUP_SIZE = 4096

Row = dict[str, Any]


@dataclass(frozen=True)
class Columns:
    """Which columns there are: with `threshold`, whether to abstain; with `classes`, one for each.

    To abstain from is a prediction whose confidence is below the threshold, and one that lies
    further from the sources than all that was held out: no confidence was ever measured there.
    """

    threshold: float | None = None
    classes: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """In their order."""
        abstain = [] if self.threshold is None else ["abstain"]
        own = ["file", "class", "confidence", "distance", "percentile", *abstain, "error"]
        return [*own, *(f"p({name})" for name in self.classes)]

    def row(self, prediction: Prediction) -> Row:
        """One prediction, under the names of the columns."""
        found: Row = {
            "file": safe_name(prediction.file),
            "class": prediction.label or None,
            "confidence": prediction.confidence,
            "distance": prediction.distance,
            "percentile": prediction.percentile,
        }
        if self.threshold is not None:
            found["abstain"] = self._abstain(prediction, self.threshold)
        found["error"] = prediction.error or None
        every = prediction.probabilities or [None] * len(self.classes)
        pairs = zip(self.classes, every, strict=False)
        return {**found, **{f"p({name})": value for name, value in pairs}}

    def _abstain(self, prediction: Prediction, threshold: float) -> bool | None:
        if prediction.confidence is None:
            return None
        beyond = (
            prediction.percentile is not None and prediction.percentile >= OUT_OF_RANGE_PERCENTILE
        )
        return beyond or prediction.confidence < threshold


def safe_name(file: str) -> str:
    """A file's name that can be written, and that no spreadsheet takes for a formula.

    >>> safe_name("=1+1.png")
    './=1+1.png'
    """
    name = os.fsencode(file).decode("utf-8", "backslashreplace")
    return f"./{name}" if name.startswith(FORMULA_PREFIXES) else name


def check_output_file(out: Path) -> None:
    """Refuse what cannot be written, before any work."""
    if out.suffix not in OUTPUT_SUFFIXES:
        raise SpecError(f"{out}: predictions are one of {', '.join(OUTPUT_SUFFIXES)}; name it so")
    if out.is_dir():
        raise SpecError(f"{out}: is a folder; give a file to write")
    if out.suffix == ".parquet":
        _pyarrow()


def write_predictions(predictions: Iterable[Prediction], out: Path, columns: Columns) -> None:
    """Write all rows to a file of the form that its name says."""
    check_output_file(out)
    writer = {".csv": _csv, ".jsonl": _json_lines, ".parquet": _parquet}[out.suffix]
    rows = (columns.row(prediction) for prediction in predictions)
    try:
        with atomic_write(out, durable=True) as part:
            writer(rows, part, columns)
    except OSError as error:
        raise SpecError(
            f"{out}: cannot be written ({error.strerror}); give another --out"
        ) from None


def csv_lines(rows: Iterable[Row], columns: Columns) -> Iterator[str]:
    """The lines of a CSV, its head first."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    for cells in _with_head(rows, columns.names):
        writer.writerow(cells)
        yield text.getvalue()
        text.seek(0)
        text.truncate()


def _with_head(rows: Iterable[Row], names: Sequence[str]) -> Iterator[list[Any]]:
    yield list(names)
    for row in rows:
        yield [_cell(row[name]) for name in names]


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.8g}" if isinstance(value, float) else value


def _csv(rows: Iterable[Row], part: Path, columns: Columns) -> None:
    with part.open("w", encoding="utf-8", newline="") as file:
        file.writelines(csv_lines(rows, columns))


def _json_lines(rows: Iterable[Row], part: Path, columns: Columns) -> None:
    del columns
    with part.open("w", encoding="utf-8", newline="") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _parquet(rows: Iterable[Row], part: Path, columns: Columns) -> None:
    arrow, parquet = _pyarrow()
    kinds: Mapping[str, Callable[[], Any]] = {
        "file": arrow.string,
        "class": arrow.string,
        "error": arrow.string,
        "abstain": arrow.bool_,
    }
    schema = arrow.schema([(name, kinds.get(name, arrow.float64)()) for name in columns.names])
    with parquet.ParquetWriter(part, schema) as writer:
        waiting: list[Row] = []
        for row in rows:
            waiting.append(row)
            if len(waiting) == ROW_GROUP_SIZE:
                writer.write_table(arrow.Table.from_pylist(waiting, schema=schema))
                waiting = []
        if waiting:
            writer.write_table(arrow.Table.from_pylist(waiting, schema=schema))


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise SpecError(
            f"Parquet: the package pyarrow is needed ({error}); pip install 'afield[parquet]'"
        ) from None
    return pyarrow, pyarrow.parquet
