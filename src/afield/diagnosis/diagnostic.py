"""What a diagnostic is: a look at finished runs that ends in numbers, a sentence and a picture.

A diagnostic is frozen; its fields are its settings. It looks at runs (network and data brought
back), or reads the records of a store, or both. Unseen domains may be looked at here: all is over.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import pandas as pd

from afield import registry
from afield.errors import DataError, SpecError
from afield.experiments.finished import FinishedRun
from afield.experiments.record import Record
from afield.networks.masks import MaskedNetwork
from afield.training.method import Learner

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "Diagnostic",
    "Finding",
    "Reopen",
    "check_unmasked",
    "choose_domains",
    "prepare_figure_path",
    "single_run",
    "trained_learner",
]

# Inches of a panel, and how many stand side by side.
PANEL_INCHES, PANEL_COLUMNS = (4.2, 3.6), (4, 3)
FIGURE_FORMATS = ("png", "svg", "pdf")

PlotFunction = Callable[[Sequence["Axes"]], None]
Reopen = Callable[[Record], FinishedRun]


@dataclass(frozen=True)
class Finding:
    """What was found: the numbers (`data`), what they say (`told`), and how they are drawn.

    Where there are numbers of several kinds, `more` has the others, each kind with its name.
    """

    data: pd.DataFrame
    told: str
    paint: PlotFunction = field(repr=False)
    panels: int = 1
    extra_tables: Mapping[str, pd.DataFrame] = field(default_factory=dict, repr=False)

    def draw(self, axes: "Axes | Sequence[Axes] | Any") -> None:
        """Draw to given axes, as many as there are panels."""
        given = list(axes.flat) if hasattr(axes, "flat") else axes
        listed = list(given) if isinstance(given, Sequence) else [given]
        if len(listed) < self.panels:
            raise SpecError(f"{self.panels} panel(s) are to be drawn, but {len(listed)} axes given")
        self.paint(listed[: self.panels])
        for unused in listed[self.panels :]:
            unused.set_axis_off()

    def figure(self) -> "Figure":
        """The picture."""
        from matplotlib.figure import Figure

        # Of three or four side by side, what leaves fewer places empty.
        columns = min(self.panels, min(PANEL_COLUMNS, key=lambda across: -self.panels % across))
        rows = -(-self.panels // columns)
        made = Figure(
            (PANEL_INCHES[0] * columns, PANEL_INCHES[1] * rows), dpi=120, layout="constrained"
        )
        self.draw(made.subplots(rows, columns, squeeze=False))
        return made

    def save(self, out: str | Path) -> tuple[Path, ...]:
        """Write the picture, and beside it the numbers as CSV; the picture's path comes first."""
        path = prepare_figure_path(out)
        tables = {path.with_suffix(".csv"): self.data}
        tables |= {
            path.with_suffix(f".{name}.csv"): table for name, table in self.extra_tables.items()
        }
        try:
            with warnings.catch_warnings():
                # A name in letters that the font lacks is drawn as boxes.
                warnings.filterwarnings("ignore", message="Glyph")
                self.figure().savefig(path)
            for place, table in tables.items():
                table.to_csv(place, index=False)
        except OSError as error:
            raise _unwritable(path, error) from None
        return path, *tables


@dataclass(frozen=True)
class Diagnostic:
    """A way to look; overrides `look`, or `read` or `study` where it `takes` records or a store."""

    takes: ClassVar[Literal["runs", "records", "store"]] = "runs"

    def diagnose_runs(self, runs: Sequence[FinishedRun]) -> Finding:
        """Look at one run, or at several where that makes sense."""
        raise NotImplementedError(f"{type(self).__name__} does not look at runs")

    def read(self, records: Sequence[Record]) -> Finding:
        """Read the records of a store."""
        raise NotImplementedError(f"{type(self).__name__} does not read records")

    def diagnose_store(self, records: Sequence[Record], reopen: "Reopen") -> Finding:
        """Read the records of a store, and bring some of its runs back, one at a time."""
        raise NotImplementedError(f"{type(self).__name__} does not study a store")


def prepare_figure_path(out: str | Path) -> Path:
    """The path of a picture that can be written, as far as is known before there is one."""
    path = Path(out)
    if path.suffix[1:] not in FIGURE_FORMATS:
        raise SpecError(f"{path}: a picture is one of {', '.join(FIGURE_FORMATS)}; name it fig.png")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(path, error) from None
    return path


def _unwritable(path: Path, error: OSError) -> SpecError:
    return SpecError(f"cannot write {path} ({error.strerror}); use another --out")


def single_run(runs: Sequence[FinishedRun], name: str) -> FinishedRun:
    """The one run that a diagnostic looks at."""
    if len(runs) != 1:
        raise SpecError(f"{name} looks at one run, not at {len(runs)}")
    return runs[0]


def choose_domains(finished: FinishedRun, wanted: Sequence[str], limit: int) -> list[str]:
    """The domains to show: those that are asked for, if they are there, or at most so many."""
    for name in wanted:
        if name not in finished.domains:
            known = registry.hint(name, list(finished.domains))
            raise SpecError(f"{finished.record.run.dataset} has no domain {name!r}; {known}")
    return list(dict.fromkeys(wanted)) or finished.shown(limit)


def trained_learner(finished: FinishedRun) -> Learner:
    """The model with the method's further networks as they were at the end."""
    if not finished.whole:
        raise DataError(
            f"{finished.record.run.key}: the weights of its further networks were not kept, by an "
            "earlier version; remove its folder and run it again"
        )
    return finished.trained


def check_unmasked(finished: FinishedRun, name: str) -> None:
    """Refuse runs whose network is not trained by itself."""
    if isinstance(finished.model, MaskedNetwork):
        method = finished.record.run.method
        raise SpecError(f"{name} trains a network by itself; {method} trains masks with it")
