"""What a diagnostic is: it turns finished runs into numbers, a summary and a figure.

A diagnostic is a frozen dataclass whose fields are its settings. It examines runs (with their
network and data), the records of a store, or both. It may use unseen domains, because training and
selection are over.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import pandas as pd

from afield import registry
from afield.compute import preserve_torch_state
from afield.diagnosis.figure_style import COLORS, READING, STYLE, installed_fonts
from afield.errors import DataError, SpecError
from afield.files import atomic_write, check_output, guard_formula
from afield.hyperparameters import build
from afield.networks.masks import MaskedNetwork
from afield.runs.finished import FinishedRun, reopen
from afield.runs.record import Record
from afield.runs.store import Store
from afield.training.learner import Learner

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# The size of a panel in inches, and the possible numbers of panels in a row.
PANEL_INCHES, PANEL_COLUMNS = (4.2, 3.6), (3, 2)
FIGURE_FORMATS = ("png", "svg", "pdf")

PlotFunction = Callable[[Sequence["Axes"]], None]
Reopen = Callable[[Record], FinishedRun]


@dataclass(frozen=True)
class Finding:
    """The result of a diagnostic.

    Attributes
    ----------
    data
        The numbers.
    summary
        What the numbers say, in words.
    plot
        Function that draws them on a list of axes.
    panels
        The number of axes that `plot` needs.
    extra_tables
        Further tables of numbers by name.
    """

    data: pd.DataFrame
    summary: str
    plot: PlotFunction = field(repr=False)
    panels: int = 1
    extra_tables: Mapping[str, pd.DataFrame] = field(default_factory=dict, repr=False)

    def draw(self, axes: "Axes | Sequence[Axes] | Any") -> None:
        """Draw on existing axes, at least as many as there are panels."""
        flat = list(axes.flat) if hasattr(axes, "flat") else axes
        every = list(flat) if isinstance(flat, Sequence) else [flat]
        if len(every) < self.panels:
            raise SpecError(f"the finding has {self.panels} panel(s), but got {len(every)} axes")
        self.plot(every[: self.panels])
        for unused in every[self.panels :]:
            unused.set_axis_off()

    def figure(self) -> "Figure":
        """A new figure with all panels."""
        from cycler import cycler
        from matplotlib import rc_context
        from matplotlib.figure import Figure

        # Rows of three or two panels, whichever leaves fewer cells empty.
        columns = min(self.panels, min(PANEL_COLUMNS, key=lambda across: -self.panels % across))
        rows = -(-self.panels // columns)
        size = PANEL_INCHES[0] * columns, PANEL_INCHES[1] * rows
        style: dict[Any, Any] = {**STYLE, "axes.prop_cycle": cycler(color=COLORS)}
        style["font.family"] = installed_fonts()
        with rc_context(style):
            figure = Figure(size, dpi=120, layout="constrained")
            self.draw(figure.subplots(rows, columns, squeeze=False))
        return figure

    def save(self, out: str | Path, *, overwrite: bool = True) -> tuple[Path, ...]:
        """Write the figure and the numbers as CSV beside it; return all paths, the figure first."""
        path = prepare_figure_path(out, overwrite=overwrite)
        tables = {path.with_suffix(".csv"): self.data}
        tables |= {
            path.with_suffix(f".{name}.csv"): table for name, table in self.extra_tables.items()
        }
        for table_path in tables:
            check_output(table_path, overwrite=overwrite)
        try:
            with warnings.catch_warnings(), atomic_write(path) as temporary:
                # Names may have letters that the font lacks; they are drawn as boxes.
                warnings.filterwarnings("ignore", message="Glyph")
                self.figure().savefig(temporary, format=path.suffix[1:])
            for table_path, table in tables.items():
                with atomic_write(table_path) as temporary:
                    table.map(guard_formula).to_csv(temporary, index=False)
        except OSError as error:
            raise _unwritable(path, error) from None
        return path, *tables


@dataclass(frozen=True)
class Diagnostic:
    """A diagnostic; subclasses override the method for what they take.

    `takes` is "runs" (`diagnose_runs`), "records" (`diagnose_records`) or "store"
    (`diagnose_store`).
    """

    takes: ClassVar[Literal["runs", "records", "store"]] = "runs"

    def diagnose_runs(self, runs: Sequence[FinishedRun]) -> Finding:
        """Examine one run, or several if the diagnostic supports that."""
        raise NotImplementedError(f"{type(self).__name__} does not take runs")

    def diagnose_records(self, records: Sequence[Record]) -> Finding:
        """Examine the records of a store."""
        raise NotImplementedError(f"{type(self).__name__} does not take records")

    def diagnose_store(self, records: Sequence[Record], reopen: "Reopen") -> Finding:
        """Examine the records of a store, and some of its runs, reopened one at a time."""
        raise NotImplementedError(f"{type(self).__name__} does not take a store")


def prepare_figure_path(out: str | Path, *, overwrite: bool = True) -> Path:
    """Check the path of a figure and create its folder."""
    path = Path(out)
    if path.suffix[1:] not in FIGURE_FORMATS:
        raise SpecError(
            f"{path}: the format must be one of {', '.join(FIGURE_FORMATS)}; name it fig.png"
        )
    check_output(path, overwrite=overwrite)
    check_output(path.with_suffix(".csv"), overwrite=overwrite)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(path, error) from None
    return path


def _unwritable(path: Path, error: OSError) -> SpecError:
    return SpecError(f"cannot write {path} ({error.strerror}); use another --out")


def single_run(runs: Sequence[FinishedRun], name: str) -> FinishedRun:
    """The only run; an error if there are several."""
    if len(runs) != 1:
        raise SpecError(f"{name} takes one run, not {len(runs)}")
    return runs[0]


def choose_domains(finished: FinishedRun, wanted: Sequence[str], limit: int) -> list[str]:
    """The wanted domains, or by default at most `limit` of all."""
    for name in wanted:
        if name not in finished.domains:
            hint = registry.hint(name, list(finished.domains))
            raise SpecError(f"{finished.record.run.dataset} has no domain {name!r}; {hint}")
    return list(dict.fromkeys(wanted)) or finished.shown(limit)


def trained_learner(finished: FinishedRun) -> Learner:
    """The trained model together with the other networks of its method."""
    if not finished.whole:
        raise DataError(
            f"{finished.record.run.key}: an earlier version did not keep the weights of its other "
            "networks; remove its folder and run it again"
        )
    return finished.trained


def check_unmasked(finished: FinishedRun, name: str) -> None:
    """Raise an error for networks that are trained together with masks."""
    if isinstance(finished.model, MaskedNetwork):
        method = finished.record.run.method
        raise SpecError(f"{name} trains a network without masks; {method} needs its masks")


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
    reopen_folder = partial(_reopen_network, root=root, device=device)
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


def _reopen_network(folder: Path, *, root: Path | None, device: str | None) -> FinishedRun:
    """The finished run in a folder, which must have one network."""
    finished = reopen(folder, root=root, device=device)
    if members := finished.record.run.members:
        raise SpecError(
            f"{folder}: an ensemble is not one network; give one of its members, such as "
            f"{folder.parent / members[0]}"
        )
    return finished


def _stored_records(stores: Sequence[Path], name: str) -> list[tuple[Record, Path]]:
    """The records of the stores with the folders of their runs."""
    stored = [(record, store / record.run.key) for store in stores for record in Store(store)]
    if not stored:
        raise DataError(f"{stores[0]}: no records there; {name} takes the store of a benchmark")
    return stored
