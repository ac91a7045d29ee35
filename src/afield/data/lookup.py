"""Datasets by name, or by path: a user's folder of images, audio or fonts, or a file of arrays."""

import hashlib
import os
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from afield import registry
from afield.data.cache import cache_root
from afield.data.domains import DomainSet, data_root
from afield.data.frames import ColumnChoice, is_table, split_spec
from afield.data.listing import HUB_PREFIX, dataset_path, unknown_dataset
from afield.errors import DataError, SpecError


def find_dataset(spec: str | Path, root: Path | None = None) -> DomainSet:
    """Return the dataset with this name, or the one in this folder, file or hub repository.

    `root` is the folder that contains the named datasets, ``AFIELD_DATA`` by default.

    >>> find_dataset("rotated_digits").domains[:2]
    ('0deg', '15deg')
    """
    name = str(spec)
    if name in registry.names("datasets"):
        return _named_dataset(name, root or data_root())
    name, choice = split_spec(name)
    if name.startswith(HUB_PREFIX):
        from afield.data.sources.hub import hub_dataset

        return hub_dataset(name, choice)
    path = dataset_path(name)
    if path is not None:
        return _dataset_at(path, choice)
    path = Path(name).expanduser()
    if path.is_absolute() and path.is_relative_to(cache_root().resolve()):
        raise DataError(
            f"no features {name}: the cache was deleted; `afield bench` with the folder "
            f"{path.name} computes them again"
        )
    raise unknown_dataset(name)


def _dataset_at(path: Path, choice: ColumnChoice) -> DomainSet:
    """The dataset of a path; only what reads it is imported."""
    from afield.data.sources.arrays import array_dataset
    from afield.data.sources.hub import table_parts
    from afield.data.sources.tables import table_dataset

    if is_table(path) and path.is_file():
        return table_dataset(path, choice)
    if path.is_dir() and _has_tables(path):
        return table_dataset(path, choice, files=table_parts(path.resolve(), str(path)))
    if choice.query:
        raise SpecError(f"{path}{choice.query}: only the columns of a table can be named")
    return _folder_dataset(path) if path.is_dir() else array_dataset(path)


def _has_tables(path: Path) -> bool:
    """Whether a folder is laid out as on the hub: Parquet files in it, or in its folder data."""
    try:
        return any(path.glob("*.parquet")) or any(path.glob("data/*.parquet"))
    except OSError:
        return False


def _named_dataset(name: str, root: Path) -> DomainSet:
    """Return a registered dataset.

    A registry entry is a `DomainSet`, or a function of the data root if its files must be inspected
    first.
    """
    entry = registry.find("datasets", name)
    dataset = replace(entry if isinstance(entry, DomainSet) else entry(root), name=name)
    if dataset.sizes or dataset.fingerprint or not dataset.needs or dataset.missing_files(root):
        return dataset
    # The number of samples is not declared, so the list of files identifies the data.
    paths = tuple(root / name for name in dataset.needs)
    return replace(dataset, fingerprint=_listing_digest(paths))


@lru_cache(maxsize=8)
def _listing_digest(paths: tuple[Path, ...]) -> str:
    """Digest of the names and sizes of all files under these paths."""
    digest = hashlib.sha256()
    for path in paths:
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            size = file.stat().st_size if file.is_file() else 0
            digest.update(os.fsencode(file.relative_to(path.parent)) + f" {size}\n".encode())
    return digest.hexdigest()[:16]


def _folder_dataset(path: Path) -> DomainSet:
    from afield.data.sources.folders import folder_dataset
    from afield.data.sources.fonts import font_dataset, is_font

    try:
        has_fonts = any(is_font(child) for child in path.iterdir())
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    return font_dataset(path) if has_fonts else folder_dataset(path)
