"""Batches of samples from files, decoded ahead in threads while the network works on other batches.

A file that cannot be read keeps its place in its batch, with the reason, and stops nothing.

Texts come as strings, as a column of a table or data frame, or as files.
A string is a text, a `Path` is a file: one text, or a table with a column of texts.
"""

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Tensor

from afield.compute import usable_cores
from afield.data.modalities.image import silence_pillow
from afield.data.modalities.table import is_table, read_frame
from afield.data.modalities.text import read_text
from afield.data.modality import ARRAY, FileModality, Text
from afield.data.sources.tables import USUAL_NAMES
from afield.deployment.inputs import Inputs
from afield.errors import DataError, SpecError
from afield.progress import progress

__all__ = ["FileBatch", "find_files", "read_file_batches", "sample_batches", "text_batches"]

# Files that operating systems leave behind; hidden files are ignored as well.
IGNORED_NAMES = ("thumbs.db", "desktop.ini", "__macosx")
# The number of batches that are decoded ahead of the network.
BATCHES_AHEAD = 3


@dataclass(frozen=True)
class FileBatch:
    """A batch of samples: their names, an error for each name, and the samples that were read.

    An error is empty if its sample was read; `x` holds only these samples. `files_done` is the
    number of files that are finished after this batch.
    """

    names: Sequence[str]
    errors: Sequence[str]
    x: Tensor | None
    files_done: int = 0


def find_files(paths: Iterable[str | Path], suffixes: Sequence[str]) -> list[Path]:
    """The given files, and the files with these suffixes in the given folders, at any depth."""
    found: list[Path] = []
    for path in map(Path, paths):
        if not path.is_dir():
            found.append(path)
            continue
        for parent, folders, names in os.walk(path):
            folders[:] = sorted(name for name in folders if not _is_ignored(name))
            files = [Path(parent) / name for name in sorted(names) if not _is_ignored(name)]
            found += [file for file in files if file.suffix.lower() in suffixes]
    return found


def _is_ignored(name: str) -> bool:
    return name.startswith(".") or name.lower() in IGNORED_NAMES


def sample_batches(inputs: Inputs, values: Any, size: int) -> Iterator[FileBatch]:
    """Batches of at most `size` samples of an array, tensor or data frame, or of files."""
    if isinstance(values, np.ndarray | Tensor | pd.DataFrame):
        yield from _split_samples(inputs, values, size)
        return
    files = find_files(_to_paths(values), inputs.suffixes)
    with progress("predicting", len(files)) as advance:
        for batch in read_file_batches(inputs, files, size):
            yield batch
            advance(batch.files_done)


def _to_paths(values: Any) -> list[Path]:
    if isinstance(values, str | Path):
        return [Path(values)]
    if isinstance(values, Iterable):
        paths = list(values)
        if all(isinstance(path, str | Path) for path in paths):
            return [Path(path) for path in paths]
    raise SpecError("give paths of files or folders, or one array of samples")


def _split_samples(inputs: Inputs, values: Any, size: int) -> Iterator[FileBatch]:
    x = inputs.to_samples(values)
    for start in range(0, len(x), size):
        rows = x[start : start + size]
        names = [f"[{start + i}]" for i in range(len(rows))]
        yield FileBatch(names, [""] * len(rows), rows)


def read_file_batches(inputs: Inputs, files: Sequence[Path], size: int) -> Iterator[FileBatch]:
    """Read the samples of files in order, in batches of at most `size`."""
    if isinstance(inputs.modality, FileModality):
        yield from _decode_files(inputs, files, size)
    else:
        yield from _split_array_files(inputs, files, size)


def _decode_files(inputs: Inputs, files: Sequence[Path], size: int) -> Iterator[FileBatch]:
    waiting: deque[tuple[Path, Future[tuple[NDArray[Any] | None, str]]]] = deque()
    remaining = iter(files)
    done = 0
    with silence_pillow(), ThreadPoolExecutor(usable_cores()) as threads:
        try:
            while True:
                for file in islice(remaining, BATCHES_AHEAD * size - len(waiting)):
                    waiting.append((file, threads.submit(_decode, inputs, file)))
                if not waiting:
                    return
                batch = [waiting.popleft() for _ in range(min(size, len(waiting)))]
                results = [future.result() for _, future in batch]
                samples = [sample for sample, _ in results if sample is not None]
                done += len(batch)
                yield FileBatch(
                    names=[str(file) for file, _ in batch],
                    errors=[error for _, error in results],
                    x=inputs.stack(samples) if samples else None,
                    files_done=done,
                )
        finally:
            for _, future in waiting:
                future.cancel()


def _decode(inputs: Inputs, file: Path) -> tuple[NDArray[Any] | None, str]:
    """The sample in a file, or None and the reason why it cannot be read."""
    known_suffix = file.suffix.lower() in inputs.suffixes
    errors: tuple[type[Exception], ...] = (*inputs.file_modality.decode_errors, MemoryError)
    try:
        return inputs.decode(file), ""
    except FileNotFoundError:
        return None, "no such file or folder"
    except errors as error:
        reason = (str(error).splitlines() or ["unreadable"])[0]
        reason = reason.replace(repr(str(file)), "").replace(str(file), "").strip(" :")
        advice = "" if known_suffix else f" (this model takes {inputs.summary})"
        return None, f"{reason or 'unreadable'}{advice}"


def _split_array_files(inputs: Inputs, files: Sequence[Path], size: int) -> Iterator[FileBatch]:
    for number, file in enumerate(files, start=1):
        try:
            x, names = inputs.read_array_file(file)
        except DataError as error:
            reason = str(error).removeprefix(f"{file}: ")
            reason = reason if file.exists() else "no such file or folder"
            yield FileBatch([str(file)], [reason], None, number)
            continue
        for start in range(0, len(x), size):
            rows, row_names = x[start : start + size], names[start : start + size]
            done = number if start + size >= len(x) else number - 1
            yield FileBatch(row_names, [""] * len(rows), rows, done)


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
