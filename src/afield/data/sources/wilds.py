"""Datasets of WILDS, whose files, labels and domains the package `wilds` lists.

The package is an extra (``pip install afield[wilds]``) and only reads the tables; images and texts
are decoded once, like those of all datasets. The data are in the folder that the package creates:
``<name>_v<version>`` in the data root.
"""

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import PIL.Image

from afield.data.domains import Domain, Download, Reader, ReadOptions
from afield.data.modalities.image import Image
from afield.data.modalities.text import Text
from afield.data.sources.folders import LabeledFile, read_files
from afield.errors import DataError

# Official splits inside and outside of the training distribution.
INSIDE, OUTSIDE = ("train", "id_val"), ("val", "test")
# All domains that have no training images or no validation images of their own.
OTHERS = "others"

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
        Returns the paths of the images in the folder of the dataset, given the package's object;
        for texts, their names.
    table
        File with the metadata, which are in the order of the images.
    groups
        Columns of the metadata that can group samples when scores are shown, such as slide.
    ungrouped
        Values of these columns that WILDS leaves out of its scores of groups.
    texts
        Returns the texts, given the package's object, if the samples are texts.
    columns
        Further columns that can group samples, as functions of the package's object.
    """

    name: str
    version: str
    field: str
    image_paths: Callable[[Any], Iterable[str]]
    table: str = "metadata.csv"
    groups: tuple[str, ...] = ()
    ungrouped: tuple[str, ...] = ()
    texts: Callable[[Any], Sequence[str]] | None = None
    columns: tuple[tuple[str, Callable[[Any], list[str]]], ...] = ()

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
        return partial(self._read, domains, self.files)

    def official_reader(self, domains: Sequence[str]) -> Reader:
        """Reader of the official splits, which expects exactly these domains."""
        return partial(self._read, domains, self.official_files)

    def files(self, root: Path) -> dict[str, list[LabeledFile]]:
        """Files by domain, for all domains with more than one file."""
        files: dict[str, list[LabeledFile]] = {}
        for domain, entry in self._entries(self._open(root), root):
            files.setdefault(domain, []).append(entry)
        return {name: entries for name, entries in files.items() if len(entries) > 1}

    def official_files(self, root: Path) -> dict[str, list[LabeledFile]]:
        """Files of the official splits.

        The domains ``val`` and ``test`` are the splits outside of the training distribution. The
        other domains have the files of the training split, and as their test list those of the
        validation split inside of it (id_val); domains without both are joined in `OTHERS`. If the
        dataset has no such validation split, they have no lists.
        """
        dataset = self._open(root)
        has_lists = "id_val" in dataset.split_dict
        split_names = {number: name for name, number in dataset.split_dict.items()}
        splits = [split_names.get(int(number), "") for number in dataset.split_array.tolist()]
        files: dict[str, list[LabeledFile]] = {}
        for split, (domain, entry) in zip(splits, self._entries(dataset, root), strict=True):
            if split in OUTSIDE:
                files.setdefault(split, []).append(entry)
            elif split in INSIDE:
                listed = replace(entry, test=split == "id_val" if has_lists else None)
                files.setdefault(domain, []).append(listed)
        return join_incomplete(files) if has_lists else files

    def _entries(self, dataset: Any, root: Path) -> Iterator[tuple[str, LabeledFile]]:
        """Domain and file of every image."""
        column = self._column(dataset, self.field)
        prefix = "" if self.field in (dataset.metadata_map or {}) else f"{self.field}_"
        rows = zip(column, self.image_paths(dataset), dataset.y_array.tolist(), strict=True)
        for value, name, label in rows:
            file = root / self.folder / name
            if self.texts is None and not file.is_file():
                advice = "delete the folder and download the data again"
                raise DataError(f"{file}: listed in the metadata, but missing; {advice}")
            yield f"{prefix}{value}", LabeledFile(file, label)

    def _column(self, dataset: Any, field: str) -> list[str]:
        """A column of the metadata in words, or in numbers if it has no words."""
        numbers = dataset.metadata_array[:, dataset.metadata_fields.index(field)].tolist()
        names = (dataset.metadata_map or {}).get(field)
        return [str(number if names is None else names[number]) for number in numbers]

    def _with_groups(self, domains: Mapping[str, Domain], root: Path) -> dict[str, Domain]:
        """The domains with the columns that group samples; empty for those in no group."""
        dataset = self._open(root)
        paths = list(self.image_paths(dataset))
        columns = {}
        for field in self.groups:
            labels = ["" if v in self.ungrouped else v for v in self._column(dataset, field)]
            columns[field] = dict(zip(paths, labels, strict=True))
        for field, compute in self.columns:
            columns[field] = dict(zip(paths, compute(dataset), strict=True))
        return {name: replace(d, columns=_of_files(columns, d)) for name, d in domains.items()}

    def _read(
        self,
        domains: Sequence[str],
        find: Callable[[Path], dict[str, list[LabeledFile]]],
        options: ReadOptions,
    ) -> dict[str, Domain]:
        root = options.root.resolve()
        files = find(root)
        unexpected, missing = set(files) - set(domains), set(domains) - set(files)
        if unexpected or missing:
            name = min(unexpected | missing)
            what = "not expected" if name in unexpected else "not in the metadata"
            raise DataError(
                f"{root / self.folder}: {self.field} {name!r} is {what}; download the data again"
            )
        read = partial(read_files, root / self.folder, files)
        if self.texts is None:
            return self._with_groups(read(Image(), options), root)
        dataset = self._open(root)
        modality = Text().with_tokens(options.tokenizer, options.tokens)
        texts = dict(zip(self.image_paths(dataset), self.texts(dataset), strict=True))
        # The official tables hold a few empty texts.
        tokenized = read(
            modality,
            options,
            decode=lambda row: modality.tokenize(texts[row.name].strip() or "."),
            stated=[root / name for name in self.needs],
            selection=f" by {self.field}",
        )
        return self._with_groups(tokenized, root)

    def _open(self, root: Path) -> Any:
        """Open the dataset with the package."""
        import pandas as pd

        try:
            # The package writes numbers into columns of text, which only objects allow.
            with _undo_side_effects(), pd.option_context("future.infer_string", False):  # noqa: FBT003
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


def row_names(dataset: Any) -> list[str]:
    """Names of the rows of a table of texts, given the package's object."""
    return [f"row {number}" for number in range(len(dataset.y_array))]


def _of_files(columns: Mapping[str, Mapping[str, str]], domain: Domain) -> dict[str, list[str]]:
    """The columns of the files of a domain."""
    return {field: [labels[name] for name in domain.names] for field, labels in columns.items()}


def join_incomplete(files: Mapping[str, list[LabeledFile]]) -> dict[str, list[LabeledFile]]:
    """Join the domains without a training or validation list; if they lack one, without lists."""
    incomplete = [
        name
        for name, entries in files.items()
        if name not in OUTSIDE and len({entry.test for entry in entries}) < 2
    ]
    joined = [entry for name in incomplete for entry in files[name]]
    if len({entry.test for entry in joined}) < 2:
        joined = [replace(entry, test=None) for entry in joined]
    kept = {name: entries for name, entries in files.items() if name not in incomplete}
    return {**kept, OTHERS: joined} if len(joined) > 1 else kept


@contextmanager
def _undo_side_effects() -> Iterator[None]:
    """Prevent or undo side effects of importing the package.

    It starts a thread that looks for a newer version on the web, and lifts Pillow's limit for the
    size of images. Its warnings, which concern its own code, are ignored.
    """
    limit, outdated = PIL.Image.MAX_IMAGE_PIXELS, sys.modules.get("outdated")
    sys.modules["outdated"] = None  # type: ignore[assignment]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        PIL.Image.MAX_IMAGE_PIXELS = limit
        del sys.modules["outdated"]
        if outdated is not None:
            sys.modules["outdated"] = outdated
