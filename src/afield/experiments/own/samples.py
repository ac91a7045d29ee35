"""Data in memory, written once to the store, so that workers and later commands can read them.

    DomainSet, {domain: torch Dataset}, (X, y, domain)    →  an .npz file
    pandas frame, Hugging Face Dataset                     →  a Parquet table

The name of the file ends in a digest of its content: the same data are written only once.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from afield import registry
from afield.data.domains import DomainSet
from afield.errors import DataError, SpecError
from afield.files import sha256

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["dataset_spec"]


def dataset_spec(data: Any, folder: Path) -> str:
    """The name or path of a dataset; data in memory are written into the folder first."""
    import pandas as pd

    if isinstance(data, str | Path):
        return str(data)
    if isinstance(data, DomainSet):
        if data.origin or data.name in registry.names("datasets"):
            return data.spec
        return _write(folder, data.name, ".npz", lambda path: _save(path, _domain_arrays(data)))
    if isinstance(data, pd.DataFrame):
        return _write(folder, "frame", ".parquet", lambda path: _save_frame(path, data))
    if callable(getattr(data, "to_parquet", None)):
        return _write(folder, "dataset", ".parquet", data.to_parquet)
    if isinstance(data, Mapping):
        return _write(folder, "datasets", ".npz", lambda path: _save(path, _mapped_arrays(data)))
    if isinstance(data, tuple) and len(data) == 3:
        names = ("X", "y", "domain")
        arrays = {name: _array(each) for name, each in zip(names, data, strict=True)}
        return _write(folder, "arrays", ".npz", lambda path: _save(path, arrays))
    raise SpecError(
        f"dataset: {type(data).__name__} is not data; give a name, a path, a DomainSet, a mapping "
        "of domains to torch Datasets, (X, y, domain), or a data frame"
    )


def _write(folder: Path, name: str, suffix: str, save: Callable[[Path], Any]) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f"{name}.{id(save)}.part{suffix}"
    try:
        save(temporary)
        path = folder / f"{name}-{sha256(temporary)[:12]}{suffix}"
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return str(path)


def _save(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    np.savez(path, **arrays)  # type: ignore[arg-type]


def _save_frame(path: Path, frame: "pd.DataFrame") -> None:
    try:
        frame.to_parquet(path, index=False)
    except ImportError:
        raise SpecError("data frames need pyarrow; try: pip install 'afield[parquet]'") from None
    except (ValueError, TypeError) as error:
        reason = " ".join(str(error).split())[:160]
        raise DataError(f"the data frame cannot be written as Parquet ({reason})") from None


def _domain_arrays(dataset: DomainSet) -> dict[str, NDArray[Any]]:
    domains = dataset.load()
    rows = [(name, len(domain.y)) for name, domain in domains.items()]
    arrays = {
        "X": torch.cat([domain.x for domain in domains.values()]).numpy(),
        "y": np.array(dataset.classes)[torch.cat([d.y for d in domains.values()]).numpy()],
        "domain": np.concatenate([np.full(count, name) for name, count in rows]),
    }
    tests = [domain.test for domain in domains.values()]
    if all(test is not None for test in tests):
        arrays["test"] = torch.cat([test for test in tests if test is not None]).numpy()
    return arrays


def _mapped_arrays(datasets: Mapping[Any, Any]) -> dict[str, NDArray[Any]]:
    x, y, domain = [], [], []
    for name, dataset in datasets.items():
        if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
            raise DataError(f"domain {name!r}: {type(dataset).__name__} is no torch Dataset")
        for row in range(len(dataset)):
            sample, label = dataset[row][:2]
            x.append(_array(sample))
            y.append(label.item() if isinstance(label, torch.Tensor) else label)
            domain.append(str(name))
    shapes = {sample.shape for sample in x}
    if len(shapes) != 1:
        raise DataError(f"samples of different shapes ({sorted(shapes)[:3]}); resize them first")
    return {"X": np.stack(x), "y": np.array(y), "domain": np.array(domain)}


def _array(values: Any) -> NDArray[Any]:
    """Values as an array without objects, which could only be pickled."""
    array = (
        values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)
    )
    return array.astype(str) if array.dtype.kind == "O" else array
