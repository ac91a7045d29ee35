"""afield: domain generalization in PyTorch. Trained at home, tested afield.

>>> import afield
>>> "vrex" in afield.names("methods")
True

The names below are imported when they are first used, so that ``afield --help`` starts at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from afield.average import Average as Average
    from afield.catalog import find as find
    from afield.catalog import names as names
    from afield.cluster import Ray as Ray
    from afield.deployment import Model as Model
    from afield.deployment import load as load
    from afield.diagnosis import diagnose as diagnose
    from afield.diagnostic import Diagnostic as Diagnostic
    from afield.diagnostic import Finding as Finding
    from afield.domains import Domain as Domain
    from afield.domains import DomainSet as DomainSet
    from afield.embedding import embed as embed
    from afield.errors import AfieldError as AfieldError
    from afield.exporting import export as export
    from afield.file_merging import merge_files as merge_files
    from afield.fitting import fit as fit
    from afield.inspection import inspected as inspected
    from afield.jobs import bench as bench
    from afield.jobs import train as train
    from afield.merged_model import merge_model as merge_model
    from afield.merging import merge as merge
    from afield.method import Method as Method
    from afield.protocol import hold_out as hold_out
    from afield.protocol import leave_one_out as leave_one_out
    from afield.readers import find_dataset as find_dataset
    from afield.record import Failure as Failure
    from afield.record import Record as Record
    from afield.record import Run as Run
    from afield.report import write_report as write_report
    from afield.runner import execute as execute
    from afield.selection import Pick as Pick
    from afield.store import Store as Store
    from afield.supply import get_dataset as get_dataset
    from afield.sweep import Local as Local
    from afield.sweep import complete as complete
    from afield.table import tabulate as tabulate

_HOMES = {
    "Average": "average",
    "find": "catalog",
    "names": "catalog",
    "Ray": "cluster",
    "Model": "deployment",
    "load": "deployment",
    "diagnose": "diagnosis",
    "Diagnostic": "diagnostic",
    "Finding": "diagnostic",
    "Domain": "domains",
    "DomainSet": "domains",
    "embed": "embedding",
    "AfieldError": "errors",
    "export": "exporting",
    "merge_files": "file_merging",
    "fit": "fitting",
    "inspected": "inspection",
    "bench": "jobs",
    "train": "jobs",
    "merge_model": "merged_model",
    "merge": "merging",
    "Method": "method",
    "hold_out": "protocol",
    "leave_one_out": "protocol",
    "find_dataset": "readers",
    "Failure": "record",
    "Record": "record",
    "Run": "record",
    "Store": "store",
    "write_report": "report",
    "execute": "runner",
    "Pick": "selection",
    "get_dataset": "supply",
    "Local": "sweep",
    "complete": "sweep",
    "tabulate": "table",
}

__all__ = sorted(_HOMES)  # noqa: PLE0605  one list, checked against the imports above by a test


# What is used as a module of afield, without an import of its own.
_MODULES = ("sklearn",)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"afield.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'afield' has no attribute {name!r}")
    return getattr(import_module(f"afield.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
