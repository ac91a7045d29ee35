"""The commands ``afield bench``, ``sweep`` (a benchmark from a file) and ``status``."""

import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from afield.cli import console, options
from afield.errors import DataError, SpecError
from afield.studies.benchmark import OPTIONS, Benchmark, make_benchmark, read_benchmark
from afield.studies.recipe import is_recipe, read_recipe

if TYPE_CHECKING:
    from afield.runs.record import Failure, Plan, Record
    from afield.runs.run import Run
    from afield.runs.store import Store


# The options that replace those of a file, also for all parts of a recipe.
FILE_OPTIONS = ("label", "domain", "on", "workers", "device", "cpus", "gpus", "retries", "store")


@options.with_options(*OPTIONS)
def bench(
    context: typer.Context,
    *,
    format_: options.Format = "console",
    tensorboard: options.Tensorboard = False,
    quiet: options.Quiet = False,
    **values: Any,
) -> None:
    """Compare methods on unseen domains: leave each domain out once and test on it.

    Runs that the store already holds are not repeated: run the same command
    again to continue.
    """
    options.check_format(format_)
    output: dict[str, Any] = {"format_": format_, "tensorboard": tensorboard, "quiet": quiet}
    if options.is_benchmark_file(values["dataset"]):
        path = Path(values.pop("dataset"))
        given = {name: value for name, value in values.items() if _is_given(context, name)}
        _run_file(path, given, output)
    else:
        run_and_print(make_benchmark(**options.read_options(values)), **output)


@options.with_options(*FILE_OPTIONS, optional=True)
def sweep(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="Benchmark or recipe in TOML; see docs/sweeps.md."),
    ],
    *,
    format_: options.Format = "console",
    tensorboard: options.Tensorboard = False,
    quiet: options.Quiet = False,
    **values: Any,
) -> None:
    """Same as `afield bench FILE.toml`: run the benchmark of a file, or a recipe with several.

    Options given here replace those of the file.
    """
    options.check_format(format_)
    _run_file(file, values, {"format_": format_, "tensorboard": tensorboard, "quiet": quiet})


def _is_given(context: typer.Context, name: str) -> bool:
    """Whether an option is on the command line, perhaps with its default value."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _run_file(path: Path, given: Mapping[str, Any], output: Mapping[str, Any]) -> None:
    """Run the benchmark or recipe of a file, with the options that were given beside it."""
    if not is_recipe(path):
        run_and_print(read_benchmark(path, **options.read_options(given)), **output)
        return
    from afield.cli.recipe import run_recipe

    other = [f"--{name.strip('_').replace('_', '-')}" for name in given if name not in FILE_OPTIONS]
    if other:
        raise SpecError(
            f"{path} is a recipe, which {', '.join(other)} cannot change; see "
            "`afield recipe run --help`"
        )
    run_recipe(read_recipe(path, **given), **output)


def status(
    store: options.StoreArgument = "runs",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep showing it until all runs are done.")
    ] = False,
) -> None:
    """Show the progress of the benchmarks in a store.

    Works from any terminal and machine that can read the store.
    """
    from afield.runs.status import statuses
    from afield.runs.store import open_store

    opened = open_store(store)
    benchmarks = statuses(opened)
    if not benchmarks:
        raise DataError(
            f"{store}: no benchmark was started there; use `afield bench --store {store}` first"
        )
    if follow:
        console.show_until_done(opened, benchmarks[-1].plan)
        benchmarks = statuses(opened)
    console.print_statuses(benchmarks)


def run_and_print(
    benchmark: Benchmark,
    *,
    format_: str,
    tensorboard: bool,
    quiet: bool,
    plan: "Callable[[Benchmark], list[Run]] | None" = None,
    show: "Callable[[Sequence[Record | Failure], Sequence[Run], Store], None] | None" = None,
) -> None:
    """Do the missing runs and show the table; the exit code is 1 if a run failed.

    `plan` and `show` replace how the benchmark is planned, and the table.
    """
    from afield.compute import keep_freed_memory
    from afield.reporting.page import write_report
    from afield.runs.record import Failure
    from afield.studies.benchmarking import Observer, run_benchmark
    from afield.studies.planning import plan_runs

    keep_freed_memory()

    class Printer(Observer):
        def planning(self) -> AbstractContextManager[None]:
            return nullcontext() if quiet else console.show_progress()

        def follow(
            self,
            outcomes: "Iterable[Record | Failure]",
            runs: "Sequence[Run]",
            store: "Store",
            plan: "Plan",
        ) -> "Iterable[Record | Failure]":
            if quiet:
                return outcomes
            console.print_plan(runs, done=plan.known)
            console.print_forecast(runs, benchmark.pool(), plan.known, threads=benchmark.threads)
            return console.follow_outcomes(outcomes, store, plan)

        def finished(
            self, outcomes: "Sequence[Record | Failure]", runs: "Sequence[Run]", store: "Store"
        ) -> None:
            (show or partial(_print_table, format_=format_, quiet=quiet))(outcomes, runs, store)

        def reported(self, path: str) -> None:
            if not quiet:
                console.err.say(f"report in {path}")

    outcomes = run_benchmark(
        benchmark,
        plan=plan or plan_runs,
        report=write_report,
        observer=Printer(),
        command=shlex.join(["afield", *sys.argv[1:]]),
        tensorboard=tensorboard,
    )
    if any(isinstance(outcome, Failure) for outcome in outcomes):
        raise typer.Exit(1)


def _print_table(
    outcomes: "Sequence[Record | Failure]",
    runs: "Sequence[Run]",
    store: "Store",
    *,
    format_: str,
    quiet: bool,
) -> None:
    from afield.runs.row import Row
    from afield.runs.selection import resolve_rules

    # The upper bound always has the rule of an oracle, too; bases and experts have no rows.
    rows = [r for r in runs if not Row.of(r).is_bound and r.role not in ("base", "expert")]
    asked = [rule for run in rows for rule in run.rules]
    console.print_outcomes(
        outcomes,
        store,
        output_format=format_,
        rules=resolve_rules(asked),
        quiet=quiet,
        metric=runs[0].metric,
    )
