"""afield: domain generalization in PyTorch. Trained at home, tested afield.

>>> import afield
>>> "vrex" in afield.names("methods")
True

The names below are imported when they are first used, so that ``afield --help`` starts at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from afield.data.availability import get_dataset as get_dataset
    from afield.data.domains import Domain as Domain
    from afield.data.domains import DomainSet as DomainSet
    from afield.data.inspection import inspect_dataset as inspect_dataset
    from afield.data.lookup import find_dataset as find_dataset
    from afield.deployment.exporting import export as export
    from afield.deployment.fitting import fit as fit
    from afield.deployment.merged_model import merge_model as merge_model
    from afield.deployment.model import Model as Model
    from afield.deployment.model import load as load
    from afield.diagnosis.diagnosing import diagnose as diagnose
    from afield.diagnosis.diagnostic import Diagnostic as Diagnostic
    from afield.diagnosis.diagnostic import Finding as Finding
    from afield.errors import AfieldError as AfieldError
    from afield.experiments.benchmarking import bench as bench
    from afield.experiments.benchmarking import train as train
    from afield.experiments.embedding import embed as embed
    from afield.experiments.pools import Ray as Ray
    from afield.experiments.protocol import hold_out as hold_out
    from afield.experiments.protocol import leave_one_out as leave_one_out
    from afield.experiments.record import Failure as Failure
    from afield.experiments.record import Record as Record
    from afield.experiments.record import Run as Run
    from afield.experiments.runner import execute as execute
    from afield.experiments.selection import Pick as Pick
    from afield.experiments.store import Store as Store
    from afield.experiments.sweep import Local as Local
    from afield.experiments.sweep import complete as complete
    from afield.merging.files import merge_files as merge_files
    from afield.merging.state_dicts import merge as merge
    from afield.registry import find as find
    from afield.registry import names as names
    from afield.reporting.page import write_report as write_report
    from afield.reporting.table import tabulate as tabulate
    from afield.training.average import Average as Average
    from afield.training.method import Method as Method

_HOMES = {
    "Average": "training.average",
    "find": "registry",
    "names": "registry",
    "Ray": "experiments.pools",
    "Model": "deployment.model",
    "load": "deployment.model",
    "diagnose": "diagnosis.diagnosing",
    "Diagnostic": "diagnosis.diagnostic",
    "Finding": "diagnosis.diagnostic",
    "Domain": "data.domains",
    "DomainSet": "data.domains",
    "embed": "experiments.embedding",
    "AfieldError": "errors",
    "export": "deployment.exporting",
    "merge_files": "merging.files",
    "fit": "deployment.fitting",
    "inspect_dataset": "data.inspection",
    "bench": "experiments.benchmarking",
    "train": "experiments.benchmarking",
    "merge_model": "deployment.merged_model",
    "merge": "merging.state_dicts",
    "Method": "training.method",
    "hold_out": "experiments.protocol",
    "leave_one_out": "experiments.protocol",
    "find_dataset": "data.lookup",
    "Failure": "experiments.record",
    "Record": "experiments.record",
    "Run": "experiments.record",
    "Store": "experiments.store",
    "write_report": "reporting.page",
    "execute": "experiments.runner",
    "Pick": "experiments.selection",
    "get_dataset": "data.availability",
    "Local": "experiments.sweep",
    "complete": "experiments.sweep",
    "tabulate": "reporting.table",
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
