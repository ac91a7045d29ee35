"""Batches of texts for a model: strings, the column of a table or data frame, or files.

A string is a text, a `Path` is a file: one text, or a table with a column of texts.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from afield.data.modality import ARRAY, Text
from afield.data.sources.table_columns import USUAL_NAMES
from afield.data.sources.table_files import is_table, read_frame
from afield.data.sources.texts import read_text
from afield.deployment.file_batches import FileBatch, find_files
from afield.deployment.inputs import Inputs
from afield.errors import DataError, SpecError
from afield.progress import progress

__all__ = ["text_batches"]

# The name of a sample, its text or why it cannot be read, and the number of files that are done.
Item = tuple[str, Any, int]
# A longer string is no name of a file.
MAX_NAME = 200


def text_batches(
    inputs: Inputs, values: Any, size: int, *, column: str = ""
) -> Iterator[FileBatch]:
    """Batches of at most `size` texts.

    Parameters
    ----------
    inputs
        What the model takes.
    values
        A string, strings, a series, a data frame, or paths of files and folders.
    column
        The column of a table or data frame with the texts; empty means that of the training data,
        or one with a usual name.
    """
    if isinstance(values, pd.DataFrame):
        values = values[_text_column(values, inputs, column, "data frame")]
    if isinstance(values, str | Path):
        values = [values]
    if not isinstance(values, Iterable):
        raise SpecError("give texts as strings, or paths of files")
    samples = list(values)
    if samples and all(isinstance(value, Path) for value in samples):
        yield from _of_files(inputs, samples, size, column)
        return
    _refuse_names(samples)
    items = ((f"[{number}]", text, 0) for number, text in enumerate(samples))
    yield from _batches(inputs, items, size)


def _of_files(inputs: Inputs, paths: Sequence[Path], size: int, column: str) -> Iterator[FileBatch]:
    files = find_files(paths, inputs.suffixes)
    with progress("predicting", len(files)) as advance:
        for batch in _batches(inputs, _read_files(inputs, files, column), size):
            yield batch
            advance(batch.files_done)


def _read_files(inputs: Inputs, files: Sequence[Path], column: str) -> Iterator[Item]:
    for number, file in enumerate(files, start=1):
        try:
            if file.suffix.lower() in ARRAY.suffixes:
                raise ValueError("arrays, but this model takes texts")  # noqa: TRY301
            if not is_table(file):
                yield str(file), read_text(file), number
                continue
            frame = read_frame(file)
            texts = frame[_text_column(frame, inputs, column, str(file))].tolist()
        except (DataError, ValueError, OSError) as error:
            reason = str(error).removeprefix(f"{file}: ")
            reason = reason if file.exists() else "no such file or folder"
            yield str(file), ValueError(reason), number
        else:
            for row, text in enumerate(texts):
                yield f"{file}[{row}]", text, number - (row + 1 < len(texts))


def _batches(inputs: Inputs, items: Iterable[Item], size: int) -> Iterator[FileBatch]:
    remaining = iter(items)
    while batch := list(islice(remaining, size)):
        results = [_tokenize(inputs, text) for _, text, _ in batch]
        samples = [row for row, _ in results if row is not None]
        yield FileBatch(
            names=[name for name, _, _ in batch],
            errors=[error for _, error in results],
            x=inputs.stack(samples) if samples else None,
            files_done=batch[-1][2],
        )


def _tokenize(inputs: Inputs, text: Any) -> tuple[NDArray[Any] | None, str]:
    """The row of a text, or None and the reason why there is none."""
    modality = inputs.modality
    if isinstance(text, Exception) or not isinstance(modality, Text):
        return None, (str(text).splitlines() or ["unreadable"])[0]
    try:
        return modality.tokenize(str(text) if isinstance(text, np.str_) else text), ""
    except ValueError as error:
        return None, str(error)


def _text_column(frame: pd.DataFrame, inputs: Inputs, column: str, where: str) -> str:
    """The column with the texts: the given one, that of the training data, or a usual one."""
    usual = () if column else (inputs.column, *USUAL_NAMES["text"])
    found = next((name for name in (column, *usual) if name and name in frame.columns), "")
    if not found:
        known = ", ".join(map(str, frame.columns[:20]))
        wanted = column or inputs.column or "text"
        raise DataError(
            f"{where}: no column {wanted!r} of texts; it has {known}; use --text COLUMN"
        )
    return found


def _refuse_names(values: Sequence[Any]) -> None:
    """Refuse strings that name files: a model for texts would classify the name."""
    for value in values:
        if isinstance(value, Path):
            raise SpecError("give either texts or paths of files, not both")
        if isinstance(value, str) and len(value) < MAX_NAME and "\n" not in value:
            path = Path(value)
            if (is_table(path) or path.suffix == ".txt") and path.is_file():
                raise SpecError(f"{value!r} is a file, not a text; give Path({value!r})")
