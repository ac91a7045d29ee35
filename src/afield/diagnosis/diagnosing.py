"""Run a diagnostic on finished runs or on a store."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from afield import registry
from afield.compute import preserve_torch_state
from afield.diagnosis.diagnostic import Diagnostic, Finding
from afield.diagnosis.figure_style import READING
from afield.errors import DataError, SpecError
from afield.hyperparameters import build
from afield.runs.finished import reopen
from afield.runs.record import Record
from afield.runs.store import Store


def diagnose(
    name: str,
    paths: str | Path | Sequence[str | Path],
    *,
    settings: Mapping[str, Any] | None = None,
    root: Path | None = None,
    device: str | None = None,
    threads: int = 1,
) -> Finding:
    """Run a diagnostic on finished runs, or on a store of runs.

    Parameters
    ----------
    name
        The diagnostic; ``afield.names("diagnostics")`` lists them.
    paths
        The folder of a finished run, or several; or the store, for diagnostics that read records.
    settings
        Settings of the diagnostic that differ from its defaults.
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
    finding = _find(name, paths, settings or {}, root=root, device=device, threads=threads)
    reading = READING.get(name, "")
    return replace(finding, summary=f"{finding.summary}\n{reading}") if reading else finding


def _find(
    name: str,
    paths: str | Path | Sequence[str | Path],
    settings: Mapping[str, Any],
    *,
    root: Path | None,
    device: str | None,
    threads: int,
) -> Finding:
    """The finding, without the sentence on how to read its figure."""
    diagnostic: Diagnostic = build(registry.find("diagnostics", name), settings, name)
    folders = [Path(paths)] if isinstance(paths, (str, Path)) else [Path(path) for path in paths]
    reopen_folder = partial(reopen, root=root, device=device)
    if diagnostic.takes == "records":
        return diagnostic.diagnose_records([record for record, _ in _stored_records(folders, name)])
    if diagnostic.takes == "store":
        stored = _stored_records(folders, name)
        by_key = {record.run.key: folder for record, folder in stored}
        with preserve_torch_state(threads):
            return diagnostic.diagnose_store(
                [record for record, _ in stored],
                lambda record: reopen_folder(by_key[record.run.key]),
            )
    for folder in folders:
        runs = sorted(path.parent for path in folder.glob("*/record.json"))
        if runs and not (folder / "record.json").exists():
            raise SpecError(f"{folder} is a store; {name} takes one of its runs, such as {runs[0]}")
    with preserve_torch_state(threads):
        return diagnostic.diagnose_runs([reopen_folder(folder) for folder in folders])


def _stored_records(stores: Sequence[Path], name: str) -> list[tuple[Record, Path]]:
    """The records of the stores with the folders of their runs."""
    stored = [(record, store / record.run.key) for store in stores for record in Store(store)]
    if not stored:
        raise DataError(f"{stores[0]}: no records there; {name} takes the store of a benchmark")
    return stored
