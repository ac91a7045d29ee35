"""Files as batches for a network: decoded ahead in threads, while the network is at another batch.

A file that cannot be read has a place in its batch, with the reason, and stops nothing.
"""

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from torch import Tensor

from afield.compute import usable_cores
from afield.data.images import silence_pillow
from afield.data.modality import FileModality
from afield.deployment.inputs import Inputs
from afield.errors import DataError

__all__ = ["FileBatch", "find_files", "read_file_batches"]

# Left behind by operating systems; hidden files are passed over as well.
IGNORED_NAMES = ("thumbs.db", "desktop.ini", "__macosx")
# Batches that are decoded ahead of the network.
BATCHES_AHEAD = 3


@dataclass(frozen=True)
class FileBatch:
    """One batch: what its samples are called, why some could not be read, and `x` of the others.

    `errors` has an entry for each name, empty where all is well. `files` is how many files are
    done with, after this portion.
    """

    names: Sequence[str]
    errors: Sequence[str]
    x: Tensor | None
    files: int = 0


def find_files(paths: Iterable[str | Path], suffixes: Sequence[str]) -> list[Path]:
    """The files that are named, and those of these suffixes in folders that are, at any depth."""
    found: list[Path] = []
    for path in map(Path, paths):
        if not path.is_dir():
            found.append(path)
            continue
        for where, folders, files in os.walk(path):
            folders[:] = sorted(name for name in folders if not _clutter(name))
            own = (name for name in sorted(files) if not _clutter(name))
            found += [Path(where) / name for name in own if Path(name).suffix.lower() in suffixes]
    return found


def _clutter(name: str) -> bool:
    return name.startswith(".") or name.lower() in IGNORED_NAMES


def read_file_batches(inputs: Inputs, files: Sequence[Path], size: int) -> Iterator[FileBatch]:
    """All files in their order, so many samples at a time."""
    if isinstance(inputs.modality, FileModality):
        yield from _of_files(inputs, files, size)
    else:
        yield from _of_arrays(inputs, files, size)


def _of_files(inputs: Inputs, files: Sequence[Path], size: int) -> Iterator[FileBatch]:
    waiting: deque[tuple[Path, Future[tuple[NDArray[Any] | None, str]]]] = deque()
    rest = iter(files)
    done = 0
    with silence_pillow(), ThreadPoolExecutor(usable_cores()) as threads:
        try:
            while True:
                while (
                    len(waiting) < BATCHES_AHEAD * size and (file := next(rest, None)) is not None
                ):
                    waiting.append((file, threads.submit(_decoded, inputs, file)))
                if not waiting:
                    return
                batch = [waiting.popleft() for _ in range(min(size, len(waiting)))]
                results = [future.result() for _, future in batch]
                good = [sample for sample, _ in results if sample is not None]
                done += len(batch)
                yield FileBatch(
                    names=[str(file) for file, _ in batch],
                    errors=[error for _, error in results],
                    x=inputs.stack(good) if good else None,
                    files=done,
                )
        finally:
            for _, future in waiting:
                future.cancel()


def _decoded(inputs: Inputs, file: Path) -> tuple[NDArray[Any] | None, str]:
    """The sample, or why there is none."""
    known = file.suffix.lower() in inputs.suffixes
    errors: tuple[type[Exception], ...] = (*inputs.file_modality.decode_errors, MemoryError)
    try:
        return inputs.decoded(file), ""
    except FileNotFoundError:
        return None, "no such file or folder"
    except errors as error:
        reason = (str(error).splitlines() or ["unreadable"])[0]
        reason = reason.replace(repr(str(file)), "").replace(str(file), "").strip(" :")
        more = "" if known else f" (this model takes {inputs.told})"
        return None, f"{reason or 'unreadable'}{more}"


def _of_arrays(inputs: Inputs, files: Sequence[Path], size: int) -> Iterator[FileBatch]:
    for number, file in enumerate(files, start=1):
        try:
            x, names = inputs.opened(file)
        except DataError as error:
            reason = str(error).removeprefix(f"{file}: ")
            reason = reason if file.exists() else "no such file or folder"
            yield FileBatch([str(file)], [reason], None, number)
            continue
        for start in range(0, len(x), size):
            own = names[start : start + size]
            last = start + size >= len(x)
            rows = x[start : start + size]
            yield FileBatch(own, [""] * len(own), rows, number if last else number - 1)
