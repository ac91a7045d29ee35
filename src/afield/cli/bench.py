"""The commands ``afield bench``, ``sweep`` (a benchmark from a file), ``work`` and ``status``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from afield.cli import console, options
from afield.errors import DataError, SpecError
from afield.studies.benchmark import OPTIONS, Benchmark, make_benchmark, read_benchmark
from afield.studies.recipe import is_recipe, read_recipe

# The options that replace those of a file, also for all parts of a recipe.
FILE_OPTIONS = (
    "label",
    "domain",
    "column_types",
    "drop",
    "on",
    "workers",
    "device",
    "cpus",
    "gpus",
    "retries",
    "store",
)


RANGE_HELP = (
    "Draw a setting between two numbers instead of from its declared range; needs --draws. Every "
    "order of magnitude is equally likely if both are above 0. The scale of a merge can be drawn "
    "as well: score.scale=0.3..1. Repeat the option for several."
)


@options.with_options(*OPTIONS)
def bench(
    context: typer.Context,
    *,
    format_: options.Format = "console",
    tensorboard: options.Tensorboard = False,
    quiet: options.Quiet = False,
    dry_run: options.DryRun = False,
    print_: options.PrintScript = False,
    range_: Annotated[
        list[str] | None, typer.Option("--range", metavar="NAME=LOW..HIGH", help=RANGE_HELP)
    ] = None,
    **values: Any,
) -> None:
    """Compare methods on unseen domains: leave each domain out once and test on it.

    Runs that the store already holds are not repeated: run the same command
    again to continue.
    """
    options.check_format(format_)
    output: dict[str, Any] = {"format_": format_, "tensorboard": tensorboard, "quiet": quiet}
    output |= {"dry_run": dry_run, "print_script": print_}
    if range_:
        values["set_"] = [*(values["set_"] or []), *map(_check_range, range_)]
    if options.is_benchmark_file(values["dataset"]):
        path = Path(values.pop("dataset"))
        given = {name: value for name, value in values.items() if _is_given(context, name)}
        given |= {"set_": values["set_"]} if range_ else {}
        _run_file(path, given, output)
    else:
        _run(make_benchmark(**options.read_options(values)), output)


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
    dry_run: options.DryRun = False,
    print_: options.PrintScript = False,
    **values: Any,
) -> None:
    """Same as `afield bench FILE.toml`: run the benchmark of a file, or a recipe with several.

    Options given here replace those of the file.
    """
    options.check_format(format_)
    output: dict[str, Any] = {
        "format_": format_,
        "tensorboard": tensorboard,
        "quiet": quiet,
        "dry_run": dry_run,
    }
    output |= {"print_script": print_}
    _run_file(file, values, output)


def _check_range(pair: str) -> str:
    """The assignment, if its value is a range."""
    from afield.hyperparameters import parse_range

    if not parse_range(pair.partition("=")[2]):
        raise SpecError(f"--range {pair}: write NAME=LOW..HIGH, e.g. vrex.penalty=1..1000")
    return pair


def _is_given(context: typer.Context, name: str) -> bool:
    """Whether an option is on the command line, perhaps with its default value."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _run(benchmark: Benchmark, output: dict[str, Any]) -> None:
    """Run a benchmark, or only say what it would cost."""
    if output.pop("dry_run"):
        console.print_benchmark_costs(benchmark)
    else:
        console.run_and_print(benchmark, **output)


def _run_file(path: Path, given: Mapping[str, Any], output: dict[str, Any]) -> None:
    """Run the benchmark or recipe of a file, with the options that were given beside it."""
    if not is_recipe(path):
        _run(read_benchmark(path, **options.read_options(given)), output)
        return
    from afield.cli.recipe import run_recipe

    other = [f"--{name.strip('_').replace('_', '-')}" for name in given if name not in FILE_OPTIONS]
    if other:
        raise SpecError(
            f"{path} is a recipe, which {', '.join(other)} cannot change; see "
            "`afield recipe run --help`"
        )
    run_recipe(read_recipe(path, **given), **output)


def work(
    store: options.StoreArgument = "runs",
    *,
    runs: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="End after so many runs.")
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(min=0, metavar="M", help="Start no run after so many minutes."),
    ] = None,
    quiet: options.Quiet = False,
) -> None:
    """Do the runs that the benchmarks in a store lack, and end.

    Start it as often as you like, on every machine that sees the store and
    the data: each run is done once. The exit code is 1 if a run failed.
    """
    console.work_and_print(
        store, runs=runs, seconds=None if minutes is None else 60 * minutes, quiet=quiet
    )


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
    console.print_statuses(benchmarks, opened)
