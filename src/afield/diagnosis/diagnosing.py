"""Bring finished runs back from their folders, and let a diagnostic look at them."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from afield import registry
from afield.data.domains import Domain, data_root
from afield.data.lookup import find_dataset
from afield.data.stream import Samples, pooled_samples
from afield.diagnosis.diagnostic import Diagnostic, Finding, Subject
from afield.errors import DataError, SpecError
from afield.experiments.record import Record, Run
from afield.experiments.run_data import cut_parts
from afield.experiments.runner import Place, begun, default_device, loaded
from afield.experiments.selection import value_of
from afield.experiments.store import Store, read_record, stored_weights
from afield.hyperparameters import build
from afield.seeds import saved_state

__all__ = ["diagnose", "revived"]


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
    again = partial(revived, root=root, device=device)
    if diagnostic.takes == "records":
        return diagnostic.read([record for record, _ in _recorded(folders, name)])
    if diagnostic.takes == "store":
        found = _recorded(folders, name)
        homes = {record.run.key: home for record, home in found}
        with _undisturbed(threads):
            return diagnostic.study(
                [record for record, _ in found], lambda record: again(homes[record.run.key])
            )
    for folder in folders:
        runs = sorted(path.parent for path in folder.glob("*/record.json"))
        if runs and not (folder / "record.json").exists():
            raise SpecError(f"{folder} is a store; {name} looks at one run of it, as {runs[0]}")
    with _undisturbed(threads):
        return diagnostic.look([again(each) for each in folders])


def _recorded(stores: Sequence[Path], name: str) -> list[tuple[Record, Path]]:
    """The records of stores, and where each lies."""
    found = [(record, store / record.run.key) for store in stores for record in Store(store)]
    if not found:
        raise DataError(f"{stores[0]}: no records there; {name} reads the store of a bench")
    return found


@contextmanager
def _undisturbed(threads: int) -> Iterator[None]:
    """So many threads; random numbers of the caller stay as they are, also where one builds."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)


def revived(
    folder: str | Path,
    *,
    dataset: str = "",
    root: Path | None = None,
    device: str | None = None,
) -> Subject:
    """A finished run with its network and its data; `dataset` says where these are now."""
    folder = Path(folder).resolve()
    record = read_record(folder)
    if dataset:
        record = replace(record, run=replace(record.run, dataset=dataset))
    run = record.run
    if run.experts and run.method == "logit_ensemble":
        raise SpecError(f"{folder}: an ensemble is not one network; look at one of its experts")
    where = torch.device(device or default_device())
    place = Place(where, torch.get_num_threads(), root or data_root(), folder.parent)
    work = begun(run, place)
    random = saved_state()
    trained = copy.deepcopy(work.learner)
    trained.model.load_state_dict(stored_weights(folder))
    parts = not trained.parts or (folder / "parts.safetensors").exists()
    if trained.parts and parts:
        trained.parts.load_state_dict(stored_weights(folder, "parts"))
    trained.model.eval()
    trained.parts.eval()
    domains = loaded(find_dataset(run.dataset, place.root), run, place.root)
    prepare = work.stream.samples.prepare
    cuts = cut_parts(run, domains)

    def samples(part: str) -> dict[str, Samples]:
        rows = {name: {name: getattr(cut, part)} for name, cut in cuts.items()}
        return {
            name: replace(pooled_samples(domains, own, place.device), prepare=prepare)
            for name, own in rows.items()
        }

    return Subject(
        record=record,
        step=max(record.candidates, key=lambda checkpoint: value_of(checkpoint, run)).step,
        model=trained.model,
        method=work.method,
        learner=work.learner,
        trained=trained,
        whole=parts,
        stream=work.stream,
        domains=samples("main"),
        probes=samples("probe"),
        called={name: _called(domains[name], cut.main) for name, cut in cuts.items()},
        random=random,
        base=stored_weights(folder.parent / run.base) if run.experts else {},
        experts={
            _named(folder.parent / key, run): stored_weights(folder.parent / key)
            for key in run.experts
        },
    )


def _named(folder: Path, merged: Run) -> str:
    """What an expert is called: its source, or its method where all have the same sources."""
    run = read_record(folder).run
    return run.method if run.sources == merged.sources else ", ".join(run.sources)


def _called(domain: Domain, rows: Tensor) -> list[str]:
    return [domain.names[row] if domain.names else str(row) for row in rows.tolist()]
