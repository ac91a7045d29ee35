"""Batches of samples from files, decoded ahead in threads while the network works on other batches.

A file that cannot be read keeps its place in its batch, with the reason, and stops nothing.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from afield.compute import usable_cores
from afield.errors import DataError, SpecError
from afield.progress import progress

if TYPE_CHECKING:
    from afield.data.inputs import Inputs


# Files that operating systems leave behind; hidden files are ignored as well.
IGNORED_NAMES = ("thumbs.db", "desktop.ini", "__macosx")
# The number of batches that are decoded ahead of the network.
BATCHES_AHEAD = 3


@dataclass(frozen=True)
class FileBatch:
    """A batch of samples: their names, an error for each name, and the samples that were read.

    An error is empty if its sample was read; `x` holds only these samples. `files_done` is the
    number of files that are finished after this batch. `ids` are what a table calls its rows, if it
    has names for them.
    """

    names: Sequence[str]
    errors: Sequence[str]
    x: Tensor | None
    files_done: int = 0
    ids: Sequence[str] | None = None


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


def sample_batches(inputs: "Inputs", values: Any, size: int) -> Iterator[FileBatch]:
    """Batches of at most `size` samples of an array, tensor or data frame, or of files."""
    # Runs on images do not wait for this import.
    import pandas as pd

    modality = inputs.modality
    if isinstance(values, np.ndarray | Tensor | pd.DataFrame):
        yield from _split_samples(modality.to_stored(inputs, values), size)
        return
    yield from batches_of_files(
        _to_paths(values),
        modality.suffixes,
        lambda files: modality.read_batches(inputs, files, size),
    )


def batches_of_files(
    paths: Iterable[Path],
    suffixes: Sequence[str],
    read: Callable[[Sequence[Path]], Iterator[FileBatch]],
) -> Iterator[FileBatch]:
    """The batches that `read` returns for files and folders, with progress."""
    files = find_files(paths, suffixes)
    with progress("predicting", len(files)) as advance:
        for batch in read(files):
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


def _split_samples(x: Tensor, size: int) -> Iterator[FileBatch]:
    for start in range(0, len(x), size):
        rows = x[start : start + size]
        names = [f"[{start + i}]" for i in range(len(rows))]
        yield FileBatch(names, [""] * len(rows), rows)


def decode_ahead(
    decode: Callable[[Path], tuple[NDArray[Any] | None, str]],
    stack: Callable[[Sequence[NDArray[Any]]], Tensor],
    files: Sequence[Path],
    size: int,
) -> Iterator[FileBatch]:
    """Decode one sample per file in threads, in batches of at most `size`.

    `decode` returns the sample, or None and the reason why it cannot be read.
    """
    waiting: deque[tuple[Path, Future[tuple[NDArray[Any] | None, str]]]] = deque()
    remaining = iter(files)
    done = 0
    with ThreadPoolExecutor(usable_cores()) as threads:
        try:
            while True:
                for file in islice(remaining, BATCHES_AHEAD * size - len(waiting)):
                    waiting.append((file, threads.submit(decode, file)))
                if not waiting:
                    return
                batch = [waiting.popleft() for _ in range(min(size, len(waiting)))]
                results = [future.result() for _, future in batch]
                samples = [sample for sample, _ in results if sample is not None]
                done += len(batch)
                yield FileBatch(
                    names=[str(file) for file, _ in batch],
                    errors=[error for _, error in results],
                    x=stack(samples) if samples else None,
                    files_done=done,
                )
        finally:
            for _, future in waiting:
                future.cancel()


def split_files(
    read: Callable[[Path], tuple[Tensor, list[str], list[str] | None]],
    files: Sequence[Path],
    size: int,
) -> Iterator[FileBatch]:
    """Read many samples per file, in batches of at most `size`.

    `read` returns the samples of a file, their names and perhaps their ids, or raises `DataError`.
    """
    for number, file in enumerate(files, start=1):
        try:
            x, names, ids = read(file)
        except DataError as error:
            reason = str(error).removeprefix(f"{file}: ")
            reason = reason if file.exists() else "no such file or folder"
            yield FileBatch([str(file)], [reason], None, number)
            continue
        for start in range(0, len(x), size):
            rows, row_names = x[start : start + size], names[start : start + size]
            done = number if start + size >= len(x) else number - 1
            row_ids = ids and ids[start : start + size]
            yield FileBatch(row_names, [""] * len(rows), rows, done, row_ids)
