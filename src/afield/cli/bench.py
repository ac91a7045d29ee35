"""The commands ``afield bench``, ``sweep`` (a benchmark from a file) and ``status``."""

import inspect
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from afield import own_code
from afield.cli import console, live_view
from afield.cli.options import (
    DATA,
    NETWORK,
    OUTPUT,
    RUNNING,
    TRAINING,
    Backbone,
    ClassNames,
    DatasetArgument,
    DomainsPerStep,
    Format,
    GroupOption,
    MetricOption,
    Quiet,
    Report,
    SetOption,
    SkipBroken,
    Split,
    Steps,
    StoreArgument,
    Templates,
    Tensorboard,
    Weights,
    check_format,
    collect_settings,
)
from afield.errors import DataError
from afield.studies.benchmark import OPTIONS, Benchmark, make_benchmark, read_benchmark
from afield.studies.recipe import is_recipe, read_recipe

if TYPE_CHECKING:
    from afield.runs.record import Failure, Plan, Record, Run
    from afield.runs.store import Store

__all__ = ["bench", "run_and_print", "status", "sweep", "with_options"]

Command = Callable[..., None]
NAMED_DOMAINS, MANY_DOMAINS, MERGING = "Which domains", "Datasets of many domains", "Merging"
# The heading under which the help lists an option.
HEADINGS = {
    **dict.fromkeys(("targets", "sources", "validate_on", "single_source"), NAMED_DOMAINS),
    **dict.fromkeys(("hold_out", "validate", "train_on"), MANY_DOMAINS),
    **dict.fromkeys(("merges", "expert_method", "base_steps", "expert_draws"), MERGING),
    **dict.fromkeys(("classes", "label", "domain", "text"), DATA),
    "finetune": NETWORK,
    **dict.fromkeys(("start", "average", "adapt"), TRAINING),
    "store": OUTPUT,
    **dict.fromkeys(("on", "workers", "device", "threads", "cpus", "gpus", "retries"), RUNNING),
}
# The settings with an option of their own; the others are given after --set.
SETTING_OPTIONS: dict[str, Any] = {
    "backbone": Backbone,
    "weights": Weights,
    "domains_per_step": DomainsPerStep,
    "steps": Steps,
    "report": Report,
    "split": Split,
    "set_": SetOption,
    "skip_broken": SkipBroken,
    "metric": MetricOption,
    "group": GroupOption,
    "class_names": ClassNames,
    "templates": Templates,
}


def with_options(*names: str, optional: bool = False) -> Callable[[Command], Command]:
    """Give a command the options of `Benchmark`, between its arguments and its own options.

    An `optional` option has no default: it is None unless it is given.
    """
    return with_parameters([p for name in names for p in _parameters(name, optional=optional)])


def with_parameters(added: Sequence[inspect.Parameter]) -> Callable[[Command], Command]:
    """Give a command keyword parameters, between its arguments and its own options."""

    def decorate(command: Command) -> Command:
        declared = inspect.signature(command, eval_str=True).parameters.values()
        arguments = [p for p in declared if p.kind is p.POSITIONAL_OR_KEYWORD]
        options = [p for p in declared if p.kind is p.KEYWORD_ONLY]
        signature = inspect.Signature([*arguments, *added, *options])
        command.__signature__ = signature  # type: ignore[attr-defined]
        return command

    return decorate


def _parameters(name: str, *, optional: bool) -> list[inspect.Parameter]:
    """The parameters of a command for one field of `Benchmark`."""
    if name == "settings":
        return [_keyword(setting, kind, None) for setting, kind in SETTING_OPTIONS.items()]
    (option_field,) = (field for field in fields(Benchmark) if field.name == name)
    kind, option = get_args(option_field.type)
    default = option_field.default
    metavar = "SHARE" if option.max is not None and option.max <= 1 else "N"
    if kind in (bool, bool | None):
        flags = f"--{name.replace('_', '-')}" + f"/--no-{name}" * (default is None)
        flag: Any = typer.Option(flags, help=option.help, rich_help_panel=HEADINGS.get(name))
        return [_keyword(name, Annotated[kind, flag], default)]
    if isinstance(default, tuple):
        kind, default, metavar = str, ",".join(default) or None, "NAMES"
    if optional or default is None:
        kind, default = kind | None, None
    if name == "dataset":
        return [_keyword(name, DatasetArgument, default)]
    shown: Any = typer.Option(
        help=option.help,
        metavar=option.metavar or metavar,
        min=option.min,
        max=option.max,
        rich_help_panel=HEADINGS.get(name),
    )
    return [_keyword(name, Annotated[kind, shown], default)]


def _keyword(name: str, kind: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


@with_options(*OPTIONS)
def bench(
    *,
    format_: Format = "console",
    tensorboard: Tensorboard = False,
    quiet: Quiet = False,
    **options: Any,
) -> None:
    """Compare methods on unseen domains: leave each domain out once and test on it.

    Runs that the store already holds are not repeated: run the same command
    again to continue.
    """
    check_format(format_)
    options = own_code.accept(options)
    given = {name: options.pop(name) for name in SETTING_OPTIONS}
    given["skip_broken"] = given["skip_broken"] or None
    benchmark = make_benchmark(settings=collect_settings(given.pop("set_"), **given), **options)
    run_and_print(benchmark, format_=format_, tensorboard=tensorboard, quiet=quiet)


@with_options(
    *("label", "domain", "on", "workers", "device", "cpus", "gpus", "retries", "store"),
    optional=True,
)
def sweep(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="Benchmark or recipe in TOML; see docs/sweeps.md."),
    ],
    *,
    format_: Format = "console",
    tensorboard: Tensorboard = False,
    quiet: Quiet = False,
    **options: Any,
) -> None:
    """Run the benchmark of a TOML file, or a recipe with several.

    Options given here replace those of the file.
    """
    check_format(format_)
    if is_recipe(file):
        from afield.cli.recipe import run_recipe

        recipe = read_recipe(file, **options)
        run_recipe(recipe, format_=format_, tensorboard=tensorboard, quiet=quiet)
        return
    benchmark = read_benchmark(file, **options)
    run_and_print(benchmark, format_=format_, tensorboard=tensorboard, quiet=quiet)


def status(
    store: StoreArgument = "runs",
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
        live_view.show_until_done(opened, benchmarks[-1].plan)
        benchmarks = statuses(opened)
    live_view.print_statuses(benchmarks)


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
            return live_view.follow_outcomes(outcomes, store, plan)

        def finished(
            self, outcomes: "Sequence[Record | Failure]", runs: "Sequence[Run]", store: "Store"
        ) -> None:
            (show or partial(_print_table, format_=format_, quiet=quiet))(outcomes, runs, store)

        def reported(self, path: str) -> None:
            if not quiet:
                console.err.print(f"report in {path}", markup=False, soft_wrap=True)

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
