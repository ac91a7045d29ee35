"""Bring finished runs back from their folders, and let a diagnostic look at them."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from afield import registry
from afield.compute import preserve_torch_state
from afield.diagnosis.diagnostic import Diagnostic, Finding
from afield.errors import DataError, SpecError
from afield.experiments.finished import reopen
from afield.experiments.record import Record
from afield.experiments.store import Store
from afield.hyperparameters import build

__all__ = ["diagnose"]


def diagnose(
    name: str,
    paths: str | Path | Sequence[str | Path],
    *,
    settings: Mapping[str, Any] | None = None,
    root: Path | None = None,
    device: str | None = None,
    threads: int = 1,
) -> Finding:
    """What a diagnostic finds in runs, or in a store of runs.

    Parameters
    ----------
    name
        The diagnostic; ``afield.names("diagnostics")`` lists them.
    paths
        The folder of a finished run, or several; or the store, for those that read records.
    settings
        Those of the diagnostic that are not the defaults.
    root, device, threads
        As in `execute`.

    Examples
    --------
    >>> import tempfile, afield
    >>> with tempfile.TemporaryDirectory() as store:
    ...     record = afield.train("spirals", "erm", target="turn10", store=store)
    ...     finding = afield.diagnose("agreement", f"{store}/{record.run.key}")
    >>> sorted(finding.data)
    ['cosine', 'first', 'second', 'seen']
    """
    diagnostic: Diagnostic = build(registry.find("diagnostics", name), settings or {})
    folders = [Path(paths)] if isinstance(paths, (str, Path)) else [Path(path) for path in paths]
    again = partial(reopen, root=root, device=device)
    if diagnostic.takes == "records":
        return diagnostic.read([record for record, _ in _recorded(folders, name)])
    if diagnostic.takes == "store":
        found = _recorded(folders, name)
        homes = {record.run.key: home for record, home in found}
        with preserve_torch_state(threads):
            return diagnostic.diagnose_store(
                [record for record, _ in found], lambda record: again(homes[record.run.key])
            )
    for folder in folders:
        runs = sorted(path.parent for path in folder.glob("*/record.json"))
        if runs and not (folder / "record.json").exists():
            raise SpecError(f"{folder} is a store; {name} looks at one run of it, as {runs[0]}")
    with preserve_torch_state(threads):
        return diagnostic.diagnose_runs([again(each) for each in folders])


def _recorded(stores: Sequence[Path], name: str) -> list[tuple[Record, Path]]:
    """The records of stores, and where each lies."""
    found = [(record, store / record.run.key) for store in stores for record in Store(store)]
    if not found:
        raise DataError(f"{stores[0]}: no records there; {name} reads the store of a bench")
    return found
