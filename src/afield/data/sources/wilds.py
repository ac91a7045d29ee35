"""Datasets of WILDS: the package `wilds` says which files, labels and domains there are.

It is an extra (``pip install afield[wilds]``) and reads the tables only; the pictures are decoded
once, as those of all other datasets. Data lie where the package puts them: ``<name>_v<version>``
under the data root.
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

# What the package raises for tables that are not what they should be.
WILDS_ERRORS = (OSError, ValueError, LookupError, AssertionError, TypeError)


@dataclass(frozen=True)
class WildsSet:
    """A dataset of the package.

    `field` is the column of its metadata that tells the domains, `table` the file of these, and
    `pictures` gives the files' paths in its folder, in the order of the metadata.
    """

    name: str
    version: str
    field: str
    pictures: Callable[[Any], Iterable[str]]
    table: str = "metadata.csv"

    @property
    def folder(self) -> str:
        """Its folder under the data root."""
        return f"{self.name}_v{self.version}"

    @property
    def needs(self) -> tuple[str, ...]:
        """What has to be there; the package takes data without a release note for half loaded."""
        return f"{self.folder}/{self.table}", f"{self.folder}/RELEASE_v{self.version}.txt"

    def source(self, size: str, *, license_name: str) -> Download:
        """Where it comes from: the package has its own download."""
        code = (
            "import wilds, afield.data.domains as d; "
            f"wilds.get_dataset('{self.name}', root_dir=d.data_root(), download=True)"
        )
        how = f'`pip install afield[wilds]`, then `python -c "{code}"` ({size})'
        return Download(instructions=how, license=license_name)

    def reader(self, domains: Sequence[str]) -> Reader:
        """Reads exactly these domains."""
        return partial(self._read, domains)

    def files(self, root: Path) -> dict[str, list[LabeledFile]]:
        """The files of all domains that have more than one."""
        whole, folder = self._opened(root), root / self.folder
        column = whole.metadata_array[:, whole.metadata_fields.index(self.field)].tolist()
        names = (whole.metadata_map or {}).get(self.field)
        rows = zip(column, self.pictures(whole), whole.y_array.tolist(), strict=True)
        found: dict[int, list[LabeledFile]] = {}
        for number, name, label in rows:
            file = folder / name
            if not file.is_file():
                told = "in the metadata, but not there; remove the folder and get the data anew"
                raise DataError(f"{file}: {told}")
            found.setdefault(number, []).append(LabeledFile(file, label))
        return {
            str(names[number]) if names else f"{self.field}_{number}": entries
            for number, entries in found.items()
            if len(entries) > 1
        }

    def _read(self, domains: Sequence[str], reading: ReadOptions) -> dict[str, Domain]:
        root = reading.root.resolve()
        files = self.files(root)
        odd = sorted(set(files) ^ set(domains))
        if odd:
            told = f"{self.field} {odd[0]!r} is only in one of metadata and declaration"
            raise DataError(f"{root / self.folder}: {told}; get the data anew")
        return read_files(root / self.folder, files, IMAGE, reading)

    def _opened(self, root: Path) -> Any:
        """The package's own object for these data."""
        try:
            with _nothing_else_changed():
                from wilds import get_dataset

                return get_dataset(self.name, version=self.version, root_dir=root, download=False)
        except ImportError as error:
            told = f"the package wilds is needed to read it ({error})"
            raise DataError(f"{self.name}: {told}; `pip install afield[wilds]`") from None
        except WILDS_ERRORS as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            told = f"the package wilds cannot read it ({reason})"
            raise DataError(f"{root / self.folder}: {told}; get the data anew") from None


@contextmanager
def _nothing_else_changed() -> Iterator[None]:
    """Undo what the package does on import beyond reading.

    It starts a thread that asks the network for its newest version, and lifts Pillow's limit for
    the size of pictures. Its warnings are about its own code.
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
