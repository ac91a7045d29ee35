"""The live view of a benchmark: a progress bar and the runs under way, or lines in a log."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from afield.cli import console
from afield.errors import AfieldError
from afield.progress import repeat_every

if TYPE_CHECKING:
    from afield.runs.record import Failure, Plan, Record
    from afield.runs.status import Status
    from afield.runs.store import Store

__all__ = ["follow_outcomes", "print_statuses", "show_until_done"]

# Time between updates of the live view on a terminal, and between lines in a log.
REFRESH_SECONDS, LOG_SECONDS = 1.0, 30.0


def follow_outcomes(
    outcomes: "Iterable[Record | Failure]", store: "Store", plan: "Plan"
) -> "Iterator[Record | Failure]":
    """Pass outcomes on as they come, with a live view on a terminal and lines in a log."""
    with _live_view(store, plan):
        yield from outcomes


def show_until_done(store: "Store", plan: "Plan") -> None:
    """Show the live view of a plan that another process works on, until that process ends."""
    from afield.runs.status import PlanWatcher

    watcher = PlanWatcher(store, plan)
    with _live_view(store, plan):
        while (status := watcher.read()).remaining and status.process_alive is not False:
            time.sleep(REFRESH_SECONDS)


def print_statuses(statuses: "Sequence[Status]") -> None:
    """Print the progress of every unfinished plan, and of the latest."""
    for status in [status for status in statuses if status.remaining or status is statuses[-1]]:
        states = {True: "running", False: "not running", None: f"started on {status.plan.host}"}
        state = states[status.process_alive] if status.remaining else "done"
        console.out.print(
            f"{status.plan.command}  ({state})", style="bold", markup=False, soft_wrap=True
        )
        console.out.print(_running_view(status))
        for failure in status.failed:
            console.out.print(
                f"  failed: {console.describe_failure(failure)}", markup=False, soft_wrap=True
            )


@contextmanager
def _live_view(store: "Store", plan: "Plan") -> Iterator[None]:
    read_status = _status_reader(store, plan)
    if console.err.is_terminal:
        view = partial(_running_view, max_lines=max(1, console.err.height - 6))
        live = Live(
            get_renderable=lambda: _render(read_status(), view),
            console=console.err,
            refresh_per_second=1 / REFRESH_SECONDS,
            transient=True,
        )
        with live:
            yield
        return

    def log() -> None:
        console.err.print(_render(read_status(), _log_line), soft_wrap=True)

    with repeat_every(log, LOG_SECONDS):
        yield


def _status_reader(store: "Store", plan: "Plan") -> "Callable[[], Status | None]":
    """A function that returns the status of a plan, or the last one if the store cannot be read.

    A store that is out of reach for a moment must not stop the work.
    """
    from afield.runs.status import PlanWatcher

    watcher = PlanWatcher(store, plan)
    last: Status | None = None

    def read_status() -> "Status | None":
        nonlocal last
        with suppress(AfieldError, OSError):
            last = watcher.read()
        return last

    return read_status


def _render(status: "Status | None", view: "Callable[[Status], RenderableType]") -> RenderableType:
    return Text("the store cannot be read at the moment") if status is None else view(status)


def _running_view(status: "Status", max_lines: int = 40) -> Group:
    """A progress bar for all runs, and a line for each run that has begun."""
    top = Table.grid(padding=(0, 1))
    top.add_row(ProgressBar(status.total, status.done, width=30), Text(_format_counts(status)))
    lines = Table.grid(padding=(0, 2))
    begun = [*status.running, *status.stopped]
    for progress in begun[:max_lines]:
        run, accuracy = progress.run, progress.accuracy
        unseen = ", ".join(progress.unseen)
        cells = (
            run.method,
            f"without {unseen}" if unseen else "on all domains",
            f"trial {run.trial}",
            f"step {progress.step}/{run.steps}",
            "" if accuracy is None else f"{100 * accuracy:.1f} % on sources",
            "" if progress in status.running else "stopped",
        )
        lines.add_row("", *(Text(cell, overflow="ellipsis", no_wrap=True) for cell in cells))
    hidden = len(begun) - max_lines
    return Group(top, lines, *([Text(f"    and {hidden} more")] if hidden > 0 else []))


def _format_counts(status: "Status") -> str:
    from afield.runs.status import format_duration

    parts = [f"{status.done}/{status.total} runs done"]
    for count, state in (
        (len(status.running), "running"),
        (len(status.stopped), "stopped"),
        (len(status.failed), "failed"),
    ):
        parts += [f"{count} {state}"] * bool(count)
    if not status.has_started and status.process_alive:
        parts.append("starting")
    if status.remaining and status.left is not None and status.process_alive is not False:
        parts.append(f"about {format_duration(status.left)} left")
    return ", ".join(parts)


def _log_line(status: "Status") -> Text:
    running = [
        f"{progress.run.method} {progress.step}/{progress.run.steps}"
        + ("" if progress.accuracy is None else f" {100 * progress.accuracy:.1f} %")
        for progress in status.running
    ]
    return Text("; ".join([_format_counts(status), *running]))
