"""What the command line shows: tables on standard output, all else on standard error."""

import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from afield.record import Failure, Record, Run

__all__ = [
    "Notes",
    "bar",
    "err",
    "followed",
    "out",
    "print_outcomes",
    "print_plan",
    "print_record",
    "progress_shown",
]

# Where there is no terminal, nothing is known of a width: tables must not be cut.
out = Console(width=None if sys.stdout.isatty() else 200, highlight=False)
err = Console(stderr=True, highlight=False)


class Notes(logging.Handler):
    """What the library warns of, a line each on standard error, above the bar if there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one line; the terminal breaks it, so that a path in it stays whole."""
        err.print(self.format(record), markup=False, soft_wrap=True)


@contextmanager
def bar(title: str, total: int | None) -> Iterator[Any]:
    """A live bar on standard error; yields a function that takes how much is done."""
    if not err.is_terminal:
        yield lambda done, note=title: None
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, transient=True) as progress:
        task = progress.add_task(title, total=total)
        yield lambda done, note=title: progress.update(task, completed=done, description=note)


def progress_shown() -> AbstractContextManager[None]:
    """Bars for what the library is at inside the block: decoding, downloading, embedding."""
    from afield.progress import shown_by

    return shown_by(bar)


def print_plan(runs: "Sequence[Run]", *, done: int) -> None:
    """What is about to be trained, in one line on standard error."""
    # Not the short training of a base.
    first = next((run for run in runs if run.role != "base"), runs[0])
    size = f" at {first.size} px" if first.size else ""
    weights = {"": "from random weights", "hub": "from the hub's weights"}
    start = weights.get(first.weights, f"from {Path(first.weights).name}")
    drawn = min(first.domains_per_step, len(first.sources)) or len(first.sources)
    told = (
        f"{first.backbone}{size}, {start}; {first.steps} steps of {drawn} × {first.batch} samples"
    )
    counted = f"{len(runs)} run{'s' * (len(runs) > 1)}"
    counted += f" ({done} of them in the store already)" if done else ""
    err.print(f"{counted} with {told}", markup=False, soft_wrap=True)


def followed(outcomes: "Iterable[Record | Failure]", total: int) -> "list[Record | Failure]":
    """All outcomes, with a bar on a terminal and a line now and then in a log."""
    from afield.record import Record

    found: list[Record | Failure] = []
    failed = 0
    with bar("runs", total) as advance:
        for outcome in outcomes:
            found.append(outcome)
            failed += not isinstance(outcome, Record)
            advance(len(found), f"{outcome.run.method}" + f", {failed} failed" * bool(failed))
            if not err.is_terminal and len(found) * 10 // total > (len(found) - 1) * 10 // total:
                err.print(f"{len(found)}/{total} runs, {failed} failed")
    return found


def print_outcomes(
    outcomes: "Iterable[Record | Failure]", store: Path, *, form: str, rules: Sequence[str]
) -> bool:
    """The table on standard output, failures and the place of the records on standard error.

    Returns whether nothing has failed.
    """
    from afield.record import Failure, Record
    from afield.table import FORMATS, as_rich, tabulate

    every = list(outcomes)
    records = [outcome for outcome in every if isinstance(outcome, Record)]
    failures = [outcome for outcome in every if isinstance(outcome, Failure)]
    frame = tabulate(records, rules=rules)
    if frame.empty and records:
        err.print("no table: the records suffice for none of these rules: " + ", ".join(rules))
    if form == "console":
        for table in as_rich(frame, out.width):
            out.print(table)
    else:
        out.print(FORMATS[form](frame), markup=False, soft_wrap=True)
    for failure in failures:
        run, where = failure.run, store / failure.run.key / "failure.json"
        told = f"{run.method} on {', '.join(run.sources)}, trial {run.trial}, draw {run.draw}"
        err.print(f"failed: {told}: {failure.error} ({where})", markup=False, soft_wrap=True)
    counted = f"{len(records)} record{'s' * (len(records) != 1)}"
    err.print(f"{counted} in {store}", markup=False, soft_wrap=True)
    return not failures


def print_record(record: "Record", folder: Path) -> None:
    """How one model does: on the sources' probe parts, and on what it has not seen."""
    from afield.selection import value_of

    sources = record.run.sources
    best = max(record.candidates, key=lambda checkpoint: value_of(checkpoint, record.run))
    size = f" at {record.run.size} px" if record.run.size else ""
    title = f"{record.run.method} with {record.run.backbone}{size}: accuracy (%)"
    table = Table(title=title, title_justify="left", box=box.SIMPLE)
    for column in ("domain", "part", f"best on sources (step {best.step})", "last"):
        table.add_column(column, justify="left" if column in ("domain", "part") else "right")
    for domain in record.domains:
        seen = domain in sources
        parts = {"probe": "probe", "known": "probe, told"} if seen else {"main": "unseen"}
        for part, told in parts.items():
            both = [checkpoint.score(domain, part) for checkpoint in (best, record.checkpoints[-1])]
            # Few methods can be told the domain.
            if part != "known" or any(both):
                cells = [f"{100 * score.accuracy:.1f}" if score else "–" for score in both]
                table.add_row(Text(domain, style="" if seen else "bold"), told, *cells)
    out.print(table)
    err.print(f"record and weights in {folder}", markup=False, soft_wrap=True)
