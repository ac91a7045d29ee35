"""Datasets in ``.npz`` files with the arrays X, y and domain; nothing is unpickled.

X has the shape samples × features or samples × (channels ×) height × width. Optional arrays are
`test`, true for the samples of the test split, `validation`, likewise, `names`, one per sample,
`group`, groups of samples finer than a domain, `text_lengths`, the numbers of tokens of the texts
whose features X has, and `provenance`, a JSON text that says how features were computed.
"""

import json
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

from afield.data.cache import cache_root
from afield.data.domains import Domain, DomainSet, ReadOptions
from afield.data.training_settings import Training
from afield.errors import DataError
from afield.files import check_regular_file, file_digest

CHANNEL_COUNTS = (1, 3, 4)
REQUIRED_KEYS = ("X", "y", "domain")
OPTIONAL_KEYS = ("test", "validation", "names", "group", "text_lengths")


def array_dataset(path: Path) -> DomainSet:
    """Dataset of an ``.npz`` file with the arrays X, y and domain."""
    path = path.resolve()
    try:
        check_regular_file(path)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}; give a folder or an .npz file") from None
    status = path.stat()
    return _cached_dataset(path, (status.st_size, status.st_mtime_ns))


@lru_cache(maxsize=1)
def _cached_dataset(path: Path, state: tuple[int, int]) -> DomainSet:
    """Dataset of a file in this state, which is not read and checked again for every run."""
    del state
    arrays = _load_arrays(path)
    names, classes = (_labels(arrays[key]) for key in ("domain", "y"))
    if len(names) < 2:
        raise DataError(f"{path}: only domain {names[0]!r}; at least two domains are needed")
    if len(classes) < 2:
        raise DataError(f"{path}: only class {classes[0]!r}; at least two classes are needed")
    provenance = _read_provenance(path)
    # Features in the cache are known by what they were computed from, not by their last digits.
    cached = path.is_relative_to(cache_root().resolve()) and "identity" in provenance
    return DomainSet(
        name=path.stem,
        domains=names,
        classes=classes,
        reader=partial(_read_arrays, path, names, classes),
        training=_usual_training(arrays["X"]),
        origin=str(path.with_suffix("") if cached else path),
        fingerprint=str(provenance["identity"]) if cached else file_digest(path),
        provenance=provenance,
    )


def _usual_training(x: NDArray[Any]) -> Training:
    """Defaults for feature vectors, for square images as bytes, and for other arrays."""
    if x.ndim == 2:
        return Training(batch=32, backbone="small:mlp")
    stored = to_channels_first(x[:1])
    is_square = stored.dtype == torch.uint8 and stored.shape[2] == stored.shape[3]
    return Training(batch=32, augment="light" if is_square else None)


def _read_provenance(path: Path) -> dict[str, Any]:
    """What a file of features says about its origin; empty if it says nothing."""
    with translate_numpy_errors(path), np.load(path, allow_pickle=False) as archive:
        text = str(archive["provenance"]) if "provenance" in archive.files else "{}"
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


@contextmanager
def translate_numpy_errors(path: Path) -> Iterator[None]:
    """Raise errors of numpy on reading a file as a DataError."""
    try:
        yield
    except PermissionError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    except MemoryError as error:
        raise DataError(f"{path}: broken, or too large for the memory ({error})") from None
    except (ValueError, EOFError, OSError, RuntimeError, BadZipFile, zlib.error):
        suffix = ".npy" if path.suffix == ".npy" else ".npz"
        reason = f"not an {suffix} file of plain arrays, or a broken one"
        advice = "convert arrays of objects with .astype(str): nothing is unpickled"
        raise DataError(f"{path}: {reason}; {advice}") from None


def _load_arrays(path: Path) -> dict[str, NDArray[Any]]:
    with translate_numpy_errors(path), path.open("rb") as file:
        archive = np.load(file, allow_pickle=False)
        present = archive.files if isinstance(archive, np.lib.npyio.NpzFile) else []
        missing = [key for key in REQUIRED_KEYS if key not in present]
        keys = [key for key in (*REQUIRED_KEYS, *OPTIONAL_KEYS) if key in present]
        arrays = {} if missing else {key: archive[key] for key in keys}
    if missing:
        names = ", ".join(present) or "no named arrays"
        raise DataError(f"{path}: no array {', '.join(missing)}; it has {names}")
    _check_arrays(path, arrays)
    return arrays


def _check_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    lengths = {key: len(array) if array.ndim else 0 for key, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{key} {length}" for key, length in lengths.items())
        raise DataError(
            f"{path}: arrays of unequal length ({counts}); each needs one entry per sample"
        )
    if not lengths["X"]:
        raise DataError(f"{path}: no samples")
    x = arrays["X"]
    if x.dtype.kind not in "fiub" or x.ndim not in (2, 3, 4) or not x.size:
        raise DataError(
            f"{path}: X is {x.dtype} of shape {x.shape}; it must hold numbers, as "
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
                "it must hold one integer or name per sample"
            )
    if "test" in arrays:
        _check_test_split(path, arrays["test"], _decode(arrays["domain"]))


def _check_test_split(path: Path, test: NDArray[Any], domain: NDArray[Any]) -> None:
    if test.dtype.kind not in "iub" or not np.isin(test, (0, 1)).all():
        raise DataError(f"{path}: test must be true or false for every sample")
    for name in np.unique(domain):
        is_test = test[domain == name]
        if is_test.all() or not is_test.any():
            share = "only" if is_test.all() else "no"
            raise DataError(
                f"{path}: domain {str(name)!r} has {share} test samples; mark some, but not all"
            )


def _labels(array: NDArray[Any]) -> tuple[str, ...]:
    return tuple(str(value) for value in np.unique(_decode(array)).tolist())


def _decode(array: NDArray[Any]) -> NDArray[Any]:
    return np.char.decode(array, "utf-8", "replace") if array.dtype.kind == "S" else array


def _read_arrays(
    path: Path, names: tuple[str, ...], classes: tuple[str, ...], options: ReadOptions
) -> dict[str, Domain]:
    del options
    arrays = _load_arrays(path)
    x = to_channels_first(arrays["X"])
    y = torch.from_numpy(np.unique(_decode(arrays["y"]), return_inverse=True)[1])
    domain = np.unique(_decode(arrays["domain"]), return_inverse=True)[1]
    if (_labels(arrays["domain"]), _labels(arrays["y"])) != (names, classes):
        raise DataError(f"{path}: the file changed after it was opened; start again")
    of_samples: dict[str, Any] = {
        key: torch.from_numpy(arrays[key].astype(bool))
        for key in ("test", "validation")
        if key in arrays
    }
    if "text_lengths" in arrays and arrays["text_lengths"].dtype.kind in "iu":
        of_samples["text_lengths"] = torch.from_numpy(arrays["text_lengths"].astype(np.int64))
    files = _decode(arrays["names"]) if "names" in arrays else None
    columns = {"group": _decode(arrays["group"])} if "group" in arrays else {}
    domains = {}
    for i, name in enumerate(names):
        rows = np.flatnonzero(domain == i)
        domains[name] = Domain(
            x[rows],
            y[rows],
            **{key: values[rows] for key, values in of_samples.items()},
            names=() if files is None else [str(file) for file in files[rows]],
            columns={key: [str(value) for value in of[rows]] for key, of in columns.items()},
        )
    return domains


def to_channels_first(x: NDArray[Any]) -> Tensor:
    """Images as samples × channels × height × width; bytes stay bytes, all else is float32."""
    if x.ndim == 3:
        x = x[:, None]
    elif x.ndim == 4 and x.shape[-1] in CHANNEL_COUNTS and x.shape[1] not in CHANNEL_COUNTS:
        x = x.transpose(0, 3, 1, 2)
    dtype = np.uint8 if x.dtype == np.uint8 and x.ndim == 4 else np.float32
    # Numbers too large for float32 become infinite; a later check reports them with their domain.
    with np.errstate(over="ignore"):
        return torch.from_numpy(np.ascontiguousarray(x, dtype=dtype))
