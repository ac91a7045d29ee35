"""Which datasets are here, and how the others come."""

from dataclasses import dataclass
from pathlib import Path

from afield import registry
from afield.data.archives import unpack
from afield.data.domains import DomainSet, data_root
from afield.data.downloads import fetch
from afield.data.lookup import find_dataset
from afield.errors import AfieldError, DataError

__all__ = ["Availability", "get_dataset", "list_availability"]


@dataclass(frozen=True)
class Availability:
    """One dataset: whether its files are here, and where they come from otherwise."""

    name: str
    available: bool
    how_to_get: str


def list_availability(root: Path | None = None) -> list[Availability]:
    """All datasets that come with afield, or with other packages."""
    return [_stocked(name, root or data_root()) for name in registry.names("datasets")]


def get_dataset(name: str, root: Path | None = None) -> DomainSet:
    """Fetch what a dataset needs and is not here, and check it; an error says what to do else."""
    place = root or data_root()
    dataset = find_dataset(name, place)
    if dataset.origin:
        raise DataError(f"{name}: these are your own data; there is nothing to get")
    if dataset.missing_files(place):
        if not dataset.download.archives:
            by_hand = dataset.download.instructions
            raise DataError(f"{name}: cannot be fetched by afield; {by_hand} (data root: {place})")
        place.mkdir(parents=True, exist_ok=True)
        for archive in dataset.download.archives:
            file = fetch(archive, place / "downloads")
            _put(file, place / archive.folder)
            file.unlink(missing_ok=True)
        dataset = find_dataset(name, place)
        still = dataset.missing_files(place)
        if still:
            raise DataError(f"{name}: fetched and unpacked, but {still[0]} is not there")
    return dataset


def _put(file: Path, into: Path) -> None:
    """An archive unpacked, or a file that readers take as it is, such as MNIST's, moved."""
    if file.name.endswith((".zip", ".tar", ".tar.gz", ".tgz")):
        unpack(file, into)
    else:
        into.mkdir(parents=True, exist_ok=True)
        file.replace(into / file.name)


def _stocked(name: str, root: Path) -> Availability:
    try:
        dataset = find_dataset(name, root)
    except (AfieldError, ImportError, AttributeError) as error:
        # Another package's dataset may fail to load; the others are there all the same.
        return Availability(name, available=False, how_to_get=str(error))
    source = dataset.download
    fetched = f"afield data get {name}"
    comes = fetched if source.archives else source.instructions or "comes with afield"
    return Availability(name, available=not dataset.missing_files(root), how_to_get=comes)
