"""Datasets of WILDS, whose files, labels and domains the package `wilds` lists.

The package is an extra (``pip install afield[wilds]``) and only reads the tables; the images are
decoded once, like those of all datasets. The data are in the folder that the package creates:
``<name>_v<version>`` in the data root.
"""

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image

from afield.data.domains import Domain, Download, Reader, ReadOptions
from afield.data.modality import IMAGE
from afield.data.sources.folders import read_files
from afield.data.sources.labeled_files import LabeledFile
from afield.errors import DataError

__all__ = ["WildsSet"]

# Raised by the package for tables that it cannot read.
WILDS_ERRORS = (OSError, ValueError, LookupError, AssertionError, TypeError)


@dataclass(frozen=True)
class WildsSet:
    """A dataset of the package `wilds`.

    Parameters
    ----------
    name, version
        Its name and version in the package.
    field
        Column of the metadata with the domains.
    image_paths
        Returns the paths of the images in the folder of the dataset, given the package's object.
    table
        File with the metadata, which are in the order of the images.
    """

    name: str
    version: str
    field: str
    image_paths: Callable[[Any], Iterable[str]]
    table: str = "metadata.csv"

    @property
    def folder(self) -> str:
        """Folder in the data root."""
        return f"{self.name}_v{self.version}"

    @property
    def needs(self) -> tuple[str, ...]:
        """Files that must exist; the package takes data without a release note for incomplete."""
        return f"{self.folder}/{self.table}", f"{self.folder}/RELEASE_v{self.version}.txt"

    def download(self, size: str, *, license_name: str) -> Download:
        """Instructions for the download, which the package does itself."""
        code = (
            "import wilds, afield.data.domains as d; "
            f"wilds.get_dataset('{self.name}', root_dir=d.data_root(), download=True)"
        )
        instructions = f'run `pip install afield[wilds]`, then `python -c "{code}"` ({size})'
        return Download(instructions=instructions, license=license_name)

    def reader(self, domains: Sequence[str]) -> Reader:
        """Reader that expects exactly these domains."""
        return partial(self._read, domains)

    def files(self, root: Path) -> dict[str, list[LabeledFile]]:
        """Files by domain, for all domains with more than one file."""
        dataset, folder = self._open(root), root / self.folder
        column = dataset.metadata_array[:, dataset.metadata_fields.index(self.field)].tolist()
        names = (dataset.metadata_map or {}).get(self.field)
        rows = zip(column, self.image_paths(dataset), dataset.y_array.tolist(), strict=True)
        files: dict[int, list[LabeledFile]] = {}
        for number, name, label in rows:
            file = folder / name
            if not file.is_file():
                advice = "delete the folder and download the data again"
                raise DataError(f"{file}: listed in the metadata, but missing; {advice}")
            files.setdefault(number, []).append(LabeledFile(file, label))
        return {
            str(names[number]) if names else f"{self.field}_{number}": entries
            for number, entries in files.items()
            if len(entries) > 1
        }

    def _read(self, domains: Sequence[str], options: ReadOptions) -> dict[str, Domain]:
        root = options.root.resolve()
        files = self.files(root)
        unexpected, missing = set(files) - set(domains), set(domains) - set(files)
        if unexpected or missing:
            name = min(unexpected | missing)
            what = "not expected" if name in unexpected else "not in the metadata"
            raise DataError(
                f"{root / self.folder}: {self.field} {name!r} is {what}; download the data again"
            )
        return read_files(root / self.folder, files, IMAGE, options)

    def _open(self, root: Path) -> Any:
        """Open the dataset with the package."""
        try:
            with _undo_side_effects():
                from wilds import get_dataset

                return get_dataset(self.name, version=self.version, root_dir=root, download=False)
        except ImportError as error:
            raise DataError(
                f"{self.name}: needs the package wilds ({error}); run `pip install afield[wilds]`"
            ) from None
        except WILDS_ERRORS as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise DataError(
                f"{root / self.folder}: the package wilds cannot read it ({reason}); "
                "download the data again"
            ) from None


@contextmanager
def _undo_side_effects() -> Iterator[None]:
    """Prevent or undo side effects of importing the package.

    It starts a thread that looks for a newer version on the web, and lifts Pillow's limit for the
    size of images. Its warnings, which concern its own code, are ignored.
    """
    limit, outdated = Image.MAX_IMAGE_PIXELS, sys.modules.get("outdated")
    sys.modules["outdated"] = None  # type: ignore[assignment]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        Image.MAX_IMAGE_PIXELS = limit
        del sys.modules["outdated"]
        if outdated is not None:
            sys.modules["outdated"] = outdated
