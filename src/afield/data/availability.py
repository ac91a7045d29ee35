"""List which datasets are available, and download the others."""

from dataclasses import dataclass
from pathlib import Path

from afield import registry
from afield.data.domains import DomainSet, data_root
from afield.data.downloads import fetch, unpack
from afield.data.lookup import find_dataset
from afield.data.sources.hub import write_hub_images
from afield.errors import AfieldError, DataError


@dataclass(frozen=True)
class Availability:
    """Whether the files of a dataset are available, and how to get them."""

    name: str
    available: bool
    how_to_get: str


def list_availability(root: Path | None = None) -> list[Availability]:
    """Availability of all datasets of afield and of other packages."""
    return [_availability(name, root or data_root()) for name in registry.names("datasets")]


def get_dataset(name: str, root: Path | None = None) -> DomainSet:
    """Download the missing files of a dataset; an error says what to do if that is impossible."""
    root = root or data_root()
    dataset = find_dataset(name, root)
    if dataset.origin:
        raise DataError(f"{name}: these are your own data; there is nothing to download")
    if dataset.missing_files(root):
        if dataset.download.hub:
            _get_from_hub(dataset, root)
        elif not dataset.download.archives:
            instructions = dataset.download.instructions
            raise DataError(
                f"{name}: afield cannot download it; {instructions} (data root: {root})"
            )
        root.mkdir(parents=True, exist_ok=True)
        for archive in dataset.download.archives:
            file = fetch(archive, root / "downloads")
            _unpack_or_move(file, root / archive.folder)
            file.unlink(missing_ok=True)
        dataset = find_dataset(name, root)
        missing = dataset.missing_files(root)
        if missing:
            raise DataError(f"{name}: downloaded and unpacked, but {missing[0]} is missing")
    return dataset


def _get_from_hub(dataset: DomainSet, root: Path) -> None:
    """Write the images of the hub home; without a connection, say how to get them by hand."""
    home = dataset.download
    try:
        write_hub_images(home.hub, root / home.folder, lists=home.hub_lists)
    except DataError as error:
        raise DataError(f"{error}; or {home.instructions}") from None


def _unpack_or_move(file: Path, into: Path) -> None:
    """Unpack an archive; move a file that readers open as it is, such as MNIST's."""
    if file.name.endswith((".zip", ".tar", ".tar.gz", ".tgz")):
        unpack(file, into)
    else:
        into.mkdir(parents=True, exist_ok=True)
        file.replace(into / file.name)


def _availability(name: str, root: Path) -> Availability:
    try:
        dataset = find_dataset(name, root)
    except (AfieldError, ImportError, AttributeError) as error:
        # A dataset of another package may fail to load; list the others all the same.
        return Availability(name, available=False, how_to_get=str(error))
    command, instructions = f"afield data get {name}", dataset.download.instructions
    automatic = bool(dataset.download.archives or dataset.download.hub)
    how_to_get = command if automatic else instructions or "comes with afield"
    return Availability(name, available=not dataset.missing_files(root), how_to_get=how_to_get)
