"""Datasets by name, and a user's own by path: folders of pictures, sounds or fonts, and arrays."""

import hashlib
import os
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from afield import registry
from afield.data.domains import DomainSet, data_root
from afield.data.sources.arrays import array_dataset
from afield.data.sources.folders import folder_dataset
from afield.data.sources.fonts import font_dataset, is_font
from afield.errors import DataError, UnknownNameError

__all__ = ["find_dataset"]


def find_dataset(spec: str | Path, root: Path | None = None) -> DomainSet:
    """A dataset by its name, or a user's own by the path of a folder or an ``.npz`` file.

    `root` is where named datasets lie, by default ``AFIELD_DATA``.

    >>> find_dataset("rotated_digits").domains[:2]
    ('0deg', '15deg')
    """
    name = str(spec)
    if name in registry.names("datasets"):
        return _named(name, root or data_root())
    try:
        path = Path(name).expanduser()
        if name and not path.exists() and path.with_name(f"{path.name}.npz").exists():
            path = path.with_name(f"{path.name}.npz")
        exists = bool(name) and path.exists()
    except (OSError, RuntimeError, ValueError) as error:
        raise DataError(f"no file or folder {name!r} ({error})") from None
    if exists:
        return _folder(path) if path.is_dir() else array_dataset(path)
    if "/" in name or "." in name:
        raise DataError(f"no file or folder {name}; give root/<domain>/<class>/<file> or an .npz")
    known = registry.hint(name, registry.names("datasets"))
    raise UnknownNameError(f"no dataset and no file or folder called {name!r}; {known}")


def _named(name: str, root: Path) -> DomainSet:
    """A declared dataset; one that must look at its files is a function of the data's root."""
    found = registry.find("datasets", name)
    dataset = replace(found if isinstance(found, DomainSet) else found(root), name=name)
    if dataset.sizes or dataset.fingerprint or not dataset.needs or dataset.missing_files(root):
        return dataset
    # Nothing says how many files there should be: other files are other data.
    return replace(dataset, fingerprint=_listing(tuple(root / need for need in dataset.needs)))


@lru_cache(maxsize=8)
def _listing(paths: tuple[Path, ...]) -> str:
    """A digest of the names and sizes of all files there."""
    digest = hashlib.sha256()
    for path in paths:
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            size = file.stat().st_size if file.is_file() else 0
            digest.update(os.fsencode(file.relative_to(path.parent)) + f" {size}\n".encode())
    return digest.hexdigest()[:16]


def _folder(path: Path) -> DomainSet:
    try:
        fonts = any(is_font(child) for child in path.iterdir())
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    return font_dataset(path) if fonts else folder_dataset(path)
