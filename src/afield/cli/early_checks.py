"""Checks of arguments before anything large is imported: a mistyped path is reported at once."""

from pathlib import Path

from afield import own_code
from afield.data.sources.paths import check_dataset_exists
from afield.deployment.model_files import check_model_folder
from afield.errors import DataError

__all__ = ["check_dataset", "check_model", "check_store", "check_stores"]


def check_dataset(name: str | None) -> str | None:
    """Report a mistyped path before anything large is imported; load a dataset in Python."""
    if name is None:
        return None
    if own_code.is_code("datasets", name):
        return own_code.load("datasets", name)
    check_dataset_exists(name)
    return name


def check_model(folder: Path) -> Path:
    """The same for a model folder; models of the hub are left to the command."""
    if not str(folder).startswith("hf:"):
        check_model_folder(folder.expanduser())
    return folder


def check_store(name: str) -> str:
    """The same for a store; addresses are left to the command."""
    if "://" not in name and not Path(name).expanduser().exists():
        raise DataError(f"{name}: no records there; run `afield bench --store {name}`")
    return name


def check_stores(names: list[str] | None) -> list[str] | None:
    """The same for several stores."""
    for name in names or ():
        check_store(name)
    return names
