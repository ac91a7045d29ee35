"""Arrays as data: an ``.npz`` file with X, y and domain; nothing in it is ever unpickled.

X: samples × features, or samples × (channels ×) height × width. Optional: `test`, true for the
samples of a test list, and `names`, one for each sample.
"""

import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from afield.data.domains import Domain, DomainSet, ReadOptions, Training
from afield.errors import DataError
from afield.files import file_digest

__all__ = ["array_dataset", "to_channels_first", "translate_numpy_errors"]

CHANNEL_COUNTS = (1, 3, 4)
REQUIRED_KEYS, OPTIONAL_KEYS = ("X", "y", "domain"), ("test", "names")


def array_dataset(path: Path) -> DomainSet:
    """An ``.npz`` file with arrays X, y and domain; nothing in it is ever unpickled."""
    path = path.resolve()
    state = path.stat()
    return _array_file(path, (state.st_size, state.st_mtime_ns))


@lru_cache(maxsize=1)
def _array_file(path: Path, state: tuple[int, int]) -> DomainSet:
    """The same, for a file in this state: it is not read and checked again for every run."""
    del state
    arrays = _arrays(path)
    names, classes = (_labels(arrays[key]) for key in ("domain", "y"))
    if len(names) < 2:
        raise DataError(f"{path}: all samples are of domain {names[0]!r}; two are the least")
    if len(classes) < 2:
        raise DataError(f"{path}: all samples are of class {classes[0]!r}; two are the least")
    return DomainSet(
        name=path.stem,
        domains=names,
        classes=classes,
        reader=partial(_read_arrays, path, names, classes),
        training=Training(batch=32, backbone="small:mlp" if arrays["X"].ndim == 2 else "small:cnn"),
        origin=str(path),
        fingerprint=file_digest(path),
    )


@contextmanager
def translate_numpy_errors(path: Path) -> Iterator[None]:
    """What numpy raises for a file that is no archive of plain arrays, in our words."""
    try:
        yield
    except PermissionError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    except MemoryError as error:
        raise DataError(f"{path}: does not fit into memory, or is broken ({error})") from None
    except (ValueError, EOFError, OSError, RuntimeError, BadZipFile, zlib.error):
        kind = ".npy" if path.suffix == ".npy" else ".npz"
        reason = f"not an {kind} of plain arrays, or a broken one"
        instead = "(nothing is unpickled: save arrays of objects with .astype(str))"
        raise DataError(f"{path}: {reason} {instead}") from None


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    with translate_numpy_errors(path), path.open("rb") as file:
        archive = np.load(file, allow_pickle=False)
        have = archive.files if isinstance(archive, np.lib.npyio.NpzFile) else []
        missing = [key for key in REQUIRED_KEYS if key not in have]
        wanted = [] if missing else [key for key in (*REQUIRED_KEYS, *OPTIONAL_KEYS) if key in have]
        arrays = {key: archive[key] for key in wanted}
    if missing:
        told = ", ".join(have) or "no named arrays"
        raise DataError(f"{path}: no array {', '.join(missing)}; it has {told}")
    _check_arrays(path, arrays)
    return arrays


def _check_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    lengths = {key: len(array) if array.ndim else 0 for key, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{key} {length}" for key, length in lengths.items())
        raise DataError(f"{path}: arrays of unequal length ({told}); one entry a sample is needed")
    if not lengths["X"]:
        raise DataError(f"{path}: no samples")
    x = arrays["X"]
    if x.dtype.kind not in "fiub" or x.ndim not in (2, 3, 4) or not x.size:
        raise DataError(
            f"{path}: X is {x.dtype} of shape {x.shape}; numbers are needed, "
            "samples × features or samples × (channels ×) height × width"
        )
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        bad = np.flatnonzero(~np.isfinite(x).reshape(len(x), -1).all(axis=1))
        raise DataError(
            f"{path}: NaN or infinity in X, {len(bad)} sample(s), first {bad[0]}; "
            "remove or fill such samples"
        )
    for key in (key for key in arrays if key != "X"):
        if arrays[key].ndim != 1 or arrays[key].dtype.kind not in "iubUS":
            raise DataError(
                f"{path}: {key} is {arrays[key].dtype} of shape {arrays[key].shape}; "
                "one whole number or name a sample is needed"
            )
    if "test" in arrays:
        _check_test(path, arrays["test"], _text(arrays["domain"]))


def _check_test(path: Path, test: NDArray[Any], domain: NDArray[Any]) -> None:
    if test.dtype.kind not in "iub" or not np.isin(test, (0, 1)).all():
        raise DataError(f"{path}: test is not true or false for every sample")
    for name in np.unique(domain):
        marked = test[domain == name]
        if marked.all() or not marked.any():
            told = "nothing but" if marked.all() else "no"
            raise DataError(f"{path}: domain {str(name)!r} has {told} test samples; mark a part")


def _labels(array: NDArray[Any]) -> tuple[str, ...]:
    return tuple(str(value) for value in np.unique(_text(array)).tolist())


def _text(array: NDArray[Any]) -> NDArray[Any]:
    return np.char.decode(array, "utf-8", "replace") if array.dtype.kind == "S" else array


def _read_arrays(
    path: Path, names: tuple[str, ...], classes: tuple[str, ...], reading: ReadOptions
) -> dict[str, Domain]:
    del reading
    arrays = _arrays(path)
    x = to_channels_first(arrays["X"])
    y = torch.from_numpy(np.unique(_text(arrays["y"]), return_inverse=True)[1])
    domain = np.unique(_text(arrays["domain"]), return_inverse=True)[1]
    if (_labels(arrays["domain"]), _labels(arrays["y"])) != (names, classes):
        raise DataError(f"{path}: the file has changed since it was opened; start again")
    test = torch.from_numpy(arrays["test"].astype(bool)) if "test" in arrays else None
    files = _text(arrays["names"]) if "names" in arrays else None
    found = {}
    for i, name in enumerate(names):
        rows = np.flatnonzero(domain == i)
        found[name] = Domain(
            x[rows],
            y[rows],
            test=None if test is None else test[rows],
            names=() if files is None else [str(file) for file in files[rows]],
        )
    return found


def to_channels_first(x: NDArray[Any]) -> Tensor:
    """Pictures as samples × channels × height × width, bytes as they are, all else as float32."""
    if x.ndim == 3:
        x = x[:, None]
    elif x.ndim == 4 and x.shape[-1] in CHANNEL_COUNTS and x.shape[1] not in CHANNEL_COUNTS:
        x = x.transpose(0, 3, 1, 2)
    kept = np.uint8 if x.dtype == np.uint8 and x.ndim == 4 else np.float32
    # What is too large for float32 becomes infinity, and is told of with the domain's name.
    with np.errstate(over="ignore"):
        return torch.from_numpy(np.ascontiguousarray(x, dtype=kept))
