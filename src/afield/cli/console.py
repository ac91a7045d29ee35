"""Output of the command line: results on standard output, everything else on standard error."""

import logging
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console, ConsoleOptions, Group, RenderableType
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
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from afield.errors import AfieldError, SpecError
from afield.files import CONTROL_CHARACTERS
from afield.progress import progress, repeat_every, report_progress_to

if TYPE_CHECKING:
    from afield.runs.pool import Pool
    from afield.runs.record import Failure, Plan, Record
    from afield.runs.run import Run
    from afield.runs.status import Status
    from afield.runs.store import Store
    from afield.studies.benchmark import Benchmark


# Benchmarks with fewer missing runs start without an estimate of their time.
FORECAST_RUNS = 40
# Seconds before the first line on the progress of a job, and between two lines, where there is no
# terminal.
SILENT_SECONDS, LINE_SECONDS = 2.0, 20.0
# Time between updates of the live view on a terminal, and between lines in a log.
REFRESH_SECONDS, LOG_SECONDS = 1.0, 30.0


class SafeConsole(Console):
    """A console on which names from files cannot move the cursor, clear the screen or set colors.

    Every control character of a text is shown as a replacement character. Styles are added later,
    by rich itself. Codes such as ``:x:`` in names stay as they are.
    """

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render to segments without control characters."""
        for segment in super().render(renderable, options):
            text = segment.text.translate(CONTROL_CHARACTERS)
            yield segment if segment.control else Segment(text, segment.style)

    def say(self, text: RenderableType, style: str | None = None) -> None:
        """Print a text as it is: without markup, and not wrapped, so that paths can be copied."""
        self.print(text, style=style, markup=False, soft_wrap=True)


# Without a terminal the width is unknown; choose one at which tables are not truncated.
out = SafeConsole(width=None if sys.stdout.isatty() else 200, highlight=False, emoji=False)
err = SafeConsole(stderr=True, highlight=False, emoji=False)


class NoteHandler(logging.Handler):
    """Prints warnings of the library on standard error, one line each, above a progress bar.

    A line is printed once: the live view would otherwise repeat it every second.
    """

    def __init__(self) -> None:
        super().__init__()
        self._printed: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Print a line unless it was printed before."""
        line = self.format(record)
        if line not in self._printed:
            self._printed.add(line)
            err.say(line)


@contextmanager
def progress_bar(title: str, total: int | None) -> Iterator[Any]:
    """Show a progress bar on standard error; yields a function that sets how much is done.

    Without a terminal, a job that takes long prints a line now and then.
    """
    if not err.is_terminal:
        with _progress_lines(title, total) as advance:
            yield advance
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("remaining"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda done, note=title: bar.update(task, completed=done, description=note)


@contextmanager
def _progress_lines(title: str, total: int | None) -> Iterator[Callable[..., None]]:
    """Yields a function that sets how much is done; a thread prints it now and then.

    The first line comes after `SILENT_SECONDS`, the others every `LINE_SECONDS`.
    """
    started = time.monotonic()
    state: tuple[int, str] = (0, title)
    ended = threading.Event()

    def advance(done: int, note: str = title) -> None:
        nonlocal state
        state = (done, note)

    def print_lines() -> None:
        wait = SILENT_SECONDS
        while not ended.wait(wait):
            done, note = state
            err.say(_progress_line(note, done, total, time.monotonic() - started))
            wait = LINE_SECONDS

    thread = threading.Thread(target=print_lines, daemon=True)
    thread.start()
    try:
        yield advance
    finally:
        ended.set()
        thread.join()


def _progress_line(note: str, done: int, total: int | None, seconds: float) -> str:
    if not done:
        return f"{note} …"
    amount = f"{note}: {done} of {total}" if total else f"{note}: {done}"
    return amount + (f", about {seconds * (total - done) / done:.0f} s left" if total else "")


def show_loading() -> AbstractContextManager[Any]:
    """Show on a terminal that large packages are being imported, which takes seconds."""
    return err.status("starting") if err.is_terminal else nullcontext()


def show_progress() -> AbstractContextManager[None]:
    """Show progress bars for decoding, downloading and embedding inside the block."""
    return report_progress_to(progress_bar)


def print_plan(runs: "Sequence[Run]", *, done: int) -> None:
    """Describe the planned runs in one line on standard error."""
    count = f"{len(runs)} run{'s' * (len(runs) > 1)}"
    count += f" ({done} already in the store)" if done else ""
    # The first run may be the short training of a base model, which is not typical.
    typical = next((run for run in runs if run.role not in ("base", "classical")), None)
    if typical is None:
        err.say(f"{count}: {', '.join(dict.fromkeys(run.method for run in runs))}, fitted once")
        return
    size = f" at {typical.size} px" if typical.size else ""
    weights = {"": "random weights", "hub": "pretrained weights"}
    start = weights.get(typical.weights, f"weights {Path(typical.weights).name}")
    domains = min(typical.domains_per_step, len(typical.sources)) or len(typical.sources)
    samples = str(typical.batch_total or f"{domains} × {typical.batch or 'all'}")
    epochs = f" ({typical.epochs:g} epochs)" if typical.epochs else ""
    err.say(
        f"{count}: {typical.backbone}{size} from {start}, {typical.steps} steps{epochs} of "
        f"{samples} samples"
    )


def print_forecast(runs: "Sequence[Run]", pool: "Pool", done: int, *, threads: int) -> None:
    """Say how long the missing runs will take on this machine, unless there are only a few."""
    from afield.runs.status import format_duration
    from afield.runs.sweep import expected_seconds

    missing = len(runs) - done
    # Only a pool on this machine knows how many runs it does at a time.
    workers = getattr(pool, "workers", 0)
    if missing < FORECAST_RUNS or not workers:
        return
    seconds = expected_seconds(runs, workers=workers, threads=threads)
    if seconds is not None:
        left = format_duration(seconds * missing / len(runs))
        at_once = f"{workers} at a time" if workers > 1 else "one at a time"
        err.print(f"expected time for {missing} runs, {at_once}: about {left}", markup=False)


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


def print_statuses(statuses: "Sequence[Status]", store: "Store") -> None:
    """Print the progress of every unfinished plan, and of the latest."""
    from afield.runs.pools.slurm import describe_tasks

    for status in [status for status in statuses if status.remaining or status is statuses[-1]]:
        states = {True: "running", False: "not running", None: f"started on {status.plan.host}"}
        # Workers do the runs of a plan after the process that planned them has ended.
        works = True if status.running else status.process_alive
        state = states[works] if status.remaining else "done"
        out.say(f"{status.plan.command}  ({state})", style="bold")
        out.print(_running_view(status))
        for failure in status.failed:
            out.say(f"  failed: {describe_failure(failure)}")
        if status.remaining and (tasks := describe_tasks(store, status.plan)):
            out.say(f"  {tasks}")


@contextmanager
def _live_view(store: "Store", plan: "Plan") -> Iterator[None]:
    read_status = _status_reader(store, plan)
    if err.is_terminal:
        view = partial(_running_view, max_lines=max(1, err.height - 6))
        live = Live(
            get_renderable=lambda: _render(read_status(), view),
            console=err,
            refresh_per_second=1 / REFRESH_SECONDS,
            transient=True,
        )
        with live:
            yield
        return

    def log() -> None:
        err.say(_render(read_status(), _log_line))

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
    for each in begun[:max_lines]:
        run, accuracy = each.run, each.accuracy
        unseen = ", ".join(each.unseen)
        cells = (
            run.method,
            f"without {unseen}" if unseen else "on all domains",
            f"trial {run.trial}",
            f"step {each.step}/{run.steps}",
            "" if accuracy is None else f"{100 * accuracy:.1f} % on sources",
            "" if each in status.running else "stopped",
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


def describe_failure(failure: "Failure") -> str:
    """Describe a failed run and the reason."""
    run = failure.run
    sources = ", ".join(run.sources)
    return f"{run.method} on {sources}, trial {run.trial}, draw {run.draw}: {failure.error}"


def print_outcomes(
    outcomes: "Iterable[Record | Failure]",
    *stores: "Store",
    output_format: str,
    rules: Sequence[str],
    quiet: bool = False,
    metric: str = "",
    over_datasets: bool = False,
    columns: Sequence[str] = (),
    caption: str = "",
    by_network: bool = False,
) -> None:
    """Print the table on standard output; failures and the stores on standard error."""
    from afield.reporting.charts.samples import describe_groups
    from afield.reporting.claims import all_claims
    from afield.reporting.formats import FORMATS, as_latex, as_rich, choose_columns
    from afield.reporting.sentences import claim_lines
    from afield.reporting.table import group_by_network, tabulate
    from afield.runs.record import Failure, Record
    from afield.training.metrics import DEFAULT_METRIC

    outcomes = list(outcomes)
    records = [outcome for outcome in outcomes if isinstance(outcome, Record)]
    failures = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
    shown = metric or DEFAULT_METRIC
    with nullcontext() if quiet else show_progress(), progress("computing the table"):
        frame = tabulate(records, rules=rules, metric=shown, over_datasets=over_datasets)
    if frame.empty and records:
        names = ", ".join(rules)
        err.print(f"no table: too few runs for the selection rules {names}; try --rules all")
    claims = claim_lines(records, frame)
    frame = choose_columns(frame, columns) if columns else frame
    frame = group_by_network(frame) if by_network else frame
    if output_format == "console":
        for table in as_rich(frame, out.width, claims):
            out.print(table)
    elif output_format == "latex":
        out.say(as_latex(frame, claims, tested=all_claims(records, frame), caption=caption))
    else:
        out.say(FORMATS[output_format](frame, claims))
    for failure in failures:
        kept = [s for s in stores if (s.folder(failure.run) / "failure.json").exists()]
        where = f"{(kept or stores)[0].where(failure.run)}/failure.json"
        err.say(f"failed: {describe_failure(failure)} ({where})")
    if not quiet:
        for line in describe_groups(records):
            err.say(line)
        count = f"{len(records)} record{'s' * (len(records) != 1)}"
        places = ", ".join(store.where() for store in stores)
        err.say(f"{count} in {places}")


def run_and_print(
    benchmark: "Benchmark",
    *,
    format_: str,
    tensorboard: bool,
    quiet: bool,
    print_script: bool = False,
    plan: "Callable[[Benchmark], list[Run]] | None" = None,
    show: "Callable[[Sequence[Record | Failure], Sequence[Run], Store], None] | None" = None,
) -> None:
    """Do the missing runs and show the table; the exit code is 1 if a run failed.

    `plan` and `show` replace how the benchmark is planned, and the table. With `print_script`, only
    the script of the job is printed.
    """
    with show_loading():
        from afield.compute import keep_freed_memory
        from afield.reporting.page import write_report
        from afield.studies.benchmarking import Observer, run_benchmark
        from afield.studies.planning import plan_runs

    keep_freed_memory()
    pool = benchmark.pool()
    _check_print(pool, print_script=print_script)

    class Printer(Observer):
        def busy(self) -> AbstractContextManager[None]:
            return nullcontext() if quiet else show_progress()

        def follow(
            self,
            outcomes: "Iterable[Record | Failure]",
            runs: "Sequence[Run]",
            store: "Store",
            plan: "Plan",
        ) -> "Iterable[Record | Failure]":
            if quiet:
                return outcomes
            print_plan(runs, done=plan.known)
            print_forecast(runs, pool, plan.known, threads=benchmark.threads)
            return follow_outcomes(outcomes, store, plan)

        def hand_over(self, store: "Store", plan: "Plan") -> bool:
            return _submit(pool, store, plan, print_script=print_script)

        def finished(
            self, outcomes: "Sequence[Record | Failure]", runs: "Sequence[Run]", store: "Store"
        ) -> None:
            shown = partial(_print_table, asked=benchmark.rules, format_=format_, quiet=quiet)
            (show or shown)(outcomes, runs, store)

        def reported(self, path: str) -> None:
            if not quiet:
                err.say(f"report in {path}")

    outcomes = run_benchmark(
        benchmark,
        plan=plan or plan_runs,
        report=partial(write_report, rules=benchmark.rules),
        observer=Printer(),
        command=shlex.join(["afield", *sys.argv[1:]]),
        tensorboard=tensorboard,
    )
    _exit_if_failed(outcomes)


def _exit_if_failed(outcomes: "Iterable[Record | Failure]") -> None:
    from afield.runs.record import Failure

    if any(isinstance(outcome, Failure) for outcome in outcomes):
        raise typer.Exit(1)


def _check_print(pool: "Pool", *, print_script: bool) -> None:
    from afield.runs.pools.slurm import Slurm

    if print_script and not isinstance(pool, Slurm):
        raise SpecError("--print shows the script of a job; it needs --on slurm")


def _submit(pool: "Pool", store: "Store", plan: "Plan", *, print_script: bool) -> bool:
    """Submit a job for what a plan lacks, or print its script; False if runs are done here."""
    from afield.runs.pools.slurm import Slurm

    if not isinstance(pool, Slurm):
        return False
    if print_script:
        out.say(pool.write_script(store, plan).rstrip())
    else:
        err.say(pool.submit(store, plan))
    return True


def work_and_print(location: str, *, runs: int | None, seconds: float | None, quiet: bool) -> None:
    """Do the missing runs of a store; the exit code is 1 if a run failed."""
    with show_loading():
        from afield.compute import keep_freed_memory
        from afield.runs.record import Failure
        from afield.runs.store import open_store
        from afield.runs.work import Worker

    keep_freed_memory()
    done = failed = 0
    for outcome in Worker(open_store(location), runs=runs, seconds=seconds).work():
        if isinstance(outcome, Failure):
            failed += 1
            err.say(f"failed: {describe_failure(outcome)}")
        else:
            done += 1
            if not quiet:
                err.say(f"done: {outcome.run.key} in {outcome.seconds:.0f} s")
    if not quiet:
        err.say(f"{done} runs done, {failed} failed")
    if failed:
        raise typer.Exit(1)


def print_benchmark_costs(benchmark: "Benchmark") -> None:
    """Print what a benchmark would cost, without training anything."""
    with show_loading():
        from afield.studies.costs import benchmark_costs

    with show_progress():
        costs = benchmark_costs(benchmark)
    print_costs(costs.describe())


def print_costs(lines: Sequence[str]) -> None:
    """Print what a benchmark would cost."""
    for line in lines:
        out.say(line)
    err.say("nothing was trained; run the same command without --dry-run")


def _print_table(
    outcomes: "Sequence[Record | Failure]",
    runs: "Sequence[Run]",
    store: "Store",
    *,
    asked: Sequence[str],
    format_: str,
    quiet: bool,
) -> None:
    from afield.runs.row import Row
    from afield.runs.selection import rules_to_show

    # The upper bound always has the rule of an oracle, too; bases and experts have no rows.
    rows = [r for r in runs if not Row.of(r).is_bound and not r.is_auxiliary]
    evaluated = [rule for run in rows for rule in run.rules]
    print_outcomes(
        outcomes,
        store,
        output_format=format_,
        rules=rules_to_show(asked, evaluated),
        quiet=quiet,
        metric=runs[0].metric,
    )
