"""What the command line shows: tables on standard output, all else on standard error."""

import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from afield.errors import AfieldError
from afield.progress import repeat_every

if TYPE_CHECKING:
    from afield.experiments.record import Failure, Plan, Record, Run
    from afield.experiments.status import Status
    from afield.experiments.store import Store

__all__ = [
    "NoteHandler",
    "describe_failure",
    "err",
    "follow_outcomes",
    "out",
    "print_outcomes",
    "print_plan",
    "print_record",
    "print_statuses",
    "progress_bar",
    "show_progress",
    "show_until_done",
]

# Where there is no terminal, nothing is known of a width: tables must not be cut.
out = Console(width=None if sys.stdout.isatty() else 200, highlight=False)
err = Console(stderr=True, highlight=False)
# How often a view of running work is drawn anew, and a log gets a line.
REFRESH_SECONDS, LOG_SECONDS = 1.0, 30.0


class NoteHandler(logging.Handler):
    """What the library warns of, a line each on standard error, above the bar if there is one.

    The same line comes once: a view of running work would bring it every second.
    """

    def __init__(self) -> None:
        super().__init__()
        self._said: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Print one line; the terminal breaks it, so that a path in it stays whole."""
        line = self.format(record)
        if line not in self._said:
            self._said.add(line)
            err.print(line, markup=False, soft_wrap=True)


@contextmanager
def progress_bar(title: str, total: int | None) -> Iterator[Any]:
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


def show_progress() -> AbstractContextManager[None]:
    """Bars for what the library is at inside the block: decoding, downloading, embedding."""
    from afield.progress import report_progress_to

    return report_progress_to(progress_bar)


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


def follow_outcomes(
    outcomes: "Iterable[Record | Failure]", store: "Store", plan: "Plan"
) -> "Iterator[Record | Failure]":
    """The outcomes as they come, with a live view on a terminal and lines in a log."""
    with _shown(store, plan):
        yield from outcomes


def show_until_done(store: "Store", plan: "Plan") -> None:
    """The same view of a plan that another process is at, until that has ended."""
    from afield.experiments.status import plan_status

    with _shown(store, plan):
        while (status := plan_status(store, plan)).remaining and status.process_alive is not False:
            time.sleep(REFRESH_SECONDS)


def print_statuses(statuses: "Sequence[Status]") -> None:
    """How far every plan is: those with something to do, and the latest."""
    for status in [each for each in statuses if each.remaining or each is statuses[-1]]:
        state = {True: "at work", False: "not at work", None: f"started on {status.plan.host}"}
        told = state[status.process_alive] if status.remaining else "done"
        out.print(f"{status.plan.command}  ({told})", style="bold", markup=False, soft_wrap=True)
        out.print(_running_view(status))
        for failure in status.failed:
            out.print(f"  failed: {describe_failure(failure)}", markup=False, soft_wrap=True)


@contextmanager
def _shown(store: "Store", plan: "Plan") -> Iterator[None]:
    look = _looker(store, plan)
    if err.is_terminal:
        view = partial(_running_view, most=max(1, err.height - 6))
        live = Live(
            get_renderable=lambda: _of(look(), view),
            console=err,
            refresh_per_second=1 / REFRESH_SECONDS,
            transient=True,
        )
        with live:
            yield
        return
    with repeat_every(lambda: err.print(_of(look(), _log_line), soft_wrap=True), LOG_SECONDS):
        yield


def _looker(store: "Store", plan: "Plan") -> "Callable[[], Status | None]":
    """A function that says how far a plan is, or was when the store could be read last.

    A view ends no work: a store that is out of reach for a moment is no reason to stop.
    """
    from afield.experiments.status import plan_status

    last: Status | None = None

    def look() -> "Status | None":
        nonlocal last
        with suppress(AfieldError, OSError):
            last = plan_status(store, plan)
        return last

    return look


def _of(status: "Status | None", view: "Callable[[Status], RenderableType]") -> RenderableType:
    return Text("the store cannot be read now") if status is None else view(status)


def _running_view(status: "Status", most: int = 40) -> Group:
    """A bar for all runs, and a line for each that is under way."""
    top = Table.grid(padding=(0, 1))
    top.add_row(ProgressBar(status.total, status.done, width=30), Text(_counted(status)))
    lines = Table.grid(padding=(0, 2))
    begun = [*status.running, *status.stopped]
    for each in begun[:most]:
        run = each.run
        accuracy = "" if each.accuracy is None else f"{100 * each.accuracy:.1f} % on sources"
        step = f"step {each.step}/{run.steps}"
        unseen = f"without {', '.join(each.unseen)}" if each.unseen else "on all domains"
        state = "" if each in status.running else "stopped"
        cells = (run.method, unseen, f"trial {run.trial}", step, accuracy, state)
        lines.add_row("", *(Text(cell, overflow="ellipsis", no_wrap=True) for cell in cells))
    more = [Text(f"    and {len(begun) - most} more")] if len(begun) > most else []
    return Group(top, lines, *more)


def _counted(status: "Status") -> str:
    from afield.experiments.status import format_duration

    words = [f"{status.done}/{status.total} runs done"]
    for count, word in (
        (len(status.running), "running"),
        (len(status.stopped), "stopped"),
        (len(status.failed), "failed"),
    ):
        words += [f"{count} {word}"] * bool(count)
    if not status.has_started and status.process_alive:
        words.append("starting")
    if status.remaining and status.left is not None and status.process_alive is not False:
        words.append(f"about {format_duration(status.left)} left")
    return ", ".join(words)


def _log_line(status: "Status") -> Text:
    begun = [
        f"{each.run.method} {each.step}/{each.run.steps}"
        + ("" if each.accuracy is None else f" {100 * each.accuracy:.1f} %")
        for each in status.running
    ]
    return Text("; ".join([_counted(status), *begun]))


def describe_failure(failure: "Failure") -> str:
    """A failed run and the reason."""
    run = failure.run
    told = f"{run.method} on {', '.join(run.sources)}, trial {run.trial}, draw {run.draw}"
    return f"{told}: {failure.error}"


def print_outcomes(
    outcomes: "Iterable[Record | Failure]",
    store: "Store",
    *,
    output_format: str,
    rules: Sequence[str],
    quiet: bool = False,
) -> bool:
    """The table on standard output, failures and the place of the records on standard error.

    Returns whether nothing has failed.
    """
    from afield.experiments.record import Failure, Record
    from afield.reporting.formats import FORMATS, as_rich
    from afield.reporting.table import tabulate

    every = list(outcomes)
    records = [outcome for outcome in every if isinstance(outcome, Record)]
    failures = [outcome for outcome in every if isinstance(outcome, Failure)]
    frame = tabulate(records, rules=rules)
    if frame.empty and records:
        err.print("no table: the records suffice for none of these rules: " + ", ".join(rules))
    if output_format == "console":
        for table in as_rich(frame, out.width):
            out.print(table)
    else:
        out.print(FORMATS[output_format](frame), markup=False, soft_wrap=True)
    for failure in failures:
        where = f"{store.where(failure.run)}/failure.json"
        err.print(f"failed: {describe_failure(failure)} ({where})", markup=False, soft_wrap=True)
    counted = f"{len(records)} record{'s' * (len(records) != 1)}"
    if not quiet:
        err.print(f"{counted} in {store.where()}", markup=False, soft_wrap=True)
    return not failures


def print_record(record: "Record", folder: str) -> None:
    """How one model does: on the sources' probe parts, and on what it has not seen."""
    from afield.experiments.selection import selection_value

    sources = record.run.sources
    best = max(record.candidates, key=lambda checkpoint: selection_value(checkpoint, record.run))
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
