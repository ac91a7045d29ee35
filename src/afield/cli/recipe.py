"""The commands ``afield recipe list``, ``show`` and ``run``: tables and figures of papers."""

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from afield.cli import console, options
from afield.errors import SpecError
from afield.studies.recipe import Changes, Recipe, read_recipe, recipe_names

if TYPE_CHECKING:
    import pandas as pd

    from afield.runs.record import Failure, Record
    from afield.runs.run import Run
    from afield.runs.store import Store
    from afield.studies.benchmark import Benchmark


recipe = typer.Typer(
    cls=options.Group,
    help="Run the tables and figures of papers, with the paper's numbers beside ours.",
    no_args_is_help=True,
)

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="A recipe of `afield recipe list`, or a TOML file.")
]


def _only(nouns: str) -> Any:
    return typer.Option(metavar="NAMES", help=f"Only these {nouns} of the recipe.")


@recipe.command(name="list", cls=options.Command)
def list_() -> None:
    """List all recipes: what they show, and how closely afield can follow the paper."""
    table = Table(box=box.SIMPLE)
    for column in ("recipe", "reproduces", "shows"):
        table.add_column(column, overflow="fold")
    for name in recipe_names():
        one = read_recipe(name)
        table.add_row(Text(name), Text(one.reproduces), Text(one.title))
    console.out.print(table)


def _changes(
    *,
    scale: Annotated[
        float,
        typer.Option(
            metavar="SHARE",
            help="Multiply steps (at least 50) or epochs by this, e.g. 0.1. Titles of tables say "
            "so.",
        ),
    ] = 1.0,
    trials: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Repetitions, in place of the recipe's.")
    ] = None,
    methods: Annotated[str | None, _only("methods or merges")] = None,
    datasets: Annotated[str | None, _only("datasets")] = None,
    rules: Annotated[str | None, _only("selection rules")] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=PATH",
            help="Use other data in place of a dataset, e.g. pacs=my/folder. Repeatable.",
        ),
    ] = None,
    set_: options.SetOption = None,
) -> Changes:
    """Changes of the paper's recipe, from the options of a command."""
    return Changes(
        scale=scale,
        trials=trials,
        methods=tuple(options.split_names(methods or "")),
        datasets=tuple(options.split_names(datasets or "")),
        rules=tuple(options.split_names(rules or "")),
        data=dict(_assignment(text) for text in data or ()),
        settings=options.collect_settings(set_),
    )


CHANGE_OPTIONS = inspect.signature(_changes, eval_str=True).parameters


def _assignment(text: str) -> tuple[str, str]:
    name, _, path = text.partition("=")
    if not name or not path:
        raise SpecError(f"--data {text}: write the name of a dataset and a path, NAME=PATH")
    return name, path


@recipe.command(cls=options.Command)
@options.with_parameters(list(CHANGE_OPTIONS.values()))
def show(
    name: Name,
    *,
    measure: Annotated[
        bool, typer.Option(help="Measure a training step, to estimate the time.")
    ] = True,
    **values: Any,
) -> None:
    """Show what a recipe runs and costs: runs, images, time, disk, and which data are missing."""
    from afield.studies.costs import estimate_costs

    one = read_recipe(name, changes=_changes(**values))
    lines = [one.full_title, f"reproduces: {one.reproduces}"]
    lines += [f"differs: {one.differs}"] if one.differs else []
    lines += estimate_costs(one, measure=measure).describe()
    if one.parts:
        lines.append(f"run it: {_run_command(name, values)}")
    lines += [f"afterwards: {one.after}"] if one.after else []
    for line in lines:
        console.out.say(line)


def _run_command(name: str, values: Mapping[str, Any]) -> str:
    """The command that runs what was shown."""
    from afield.studies.commands import write_command

    chosen = {o: value for o, value in values.items() if value != CHANGE_OPTIONS[o].default}
    repeated = [
        (option.strip("_"), each)
        for option, value in chosen.items()
        for each in (value if isinstance(value, list) else [value])
    ]
    return write_command("recipe", "run", name, options=repeated)


@recipe.command(cls=options.Command)
@options.with_options("on", "workers", "cpus", "gpus", "retries", "store", optional=True)
@options.with_parameters(list(CHANGE_OPTIONS.values()))
def run(
    name: Name,
    *,
    format_: options.Format = "console",
    tensorboard: options.Tensorboard = False,
    quiet: options.Quiet = False,
    dry_run: options.DryRun = False,
    print_: options.PrintScript = False,
    **values: Any,
) -> None:
    """Run a recipe and show the paper's numbers beside ours.

    Runs that the store already holds are not repeated: run the same command
    again to continue. Default store: recipes/NAME.
    """
    options.check_format(format_)
    changes = _changes(**{option: values.pop(option) for option in CHANGE_OPTIONS})
    one = read_recipe(name, changes=changes, **values)
    run_recipe(
        one,
        format_=format_,
        tensorboard=tensorboard,
        quiet=quiet,
        dry_run=dry_run,
        print_script=print_,
    )


def run_recipe(
    one: Recipe,
    *,
    format_: str,
    tensorboard: bool,
    quiet: bool,
    dry_run: bool = False,
    print_script: bool = False,
) -> None:
    """Do the missing runs of a recipe, and show the paper's numbers beside ours."""
    with console.show_loading():
        from afield.studies.costs import estimate_costs, merge_plans, plan_recipe

    if not one.parts:
        raise SpecError(f"{one.name} has no runs: {one.differs}")
    if dry_run:
        with console.show_progress():
            costs = estimate_costs(one)
        console.print_costs([one.full_title, *costs.describe()])
        return
    plans: list[list[Run]] = []

    def plan(_: "Benchmark") -> "list[Run]":
        plans.extend(plan_recipe(one))
        return merge_plans(plans)

    def show_table(
        outcomes: "Sequence[Record | Failure]", _: "Sequence[Run]", store: "Store"
    ) -> None:
        _show(one, plans, outcomes, store, format_)

    console.run_and_print(
        one.parts[0].benchmark,
        format_=format_,
        tensorboard=tensorboard,
        quiet=quiet,
        print_script=print_script,
        plan=plan,
        show=show_table,
    )


def _show(
    one: Recipe,
    plans: "Sequence[Sequence[Run]]",
    outcomes: "Sequence[Record | Failure]",
    store: "Store",
    format_: str,
) -> None:
    """Print the tables, and keep them in the store."""
    from afield.reporting.paper import compare_with_paper, keep_comparison
    from afield.runs.record import Failure, Record

    found = {each.run.key: each for each in outcomes if isinstance(each, Record)}
    records = [[found[run.key] for run in plan if run.key in found] for plan in plans]
    frame = compare_with_paper(one, records)
    keep_comparison(store, one, frame)
    _print_tables(one, frame, format_)
    for each in outcomes:
        if isinstance(each, Failure):
            failed = f"failed: {console.describe_failure(each)}"
            console.err.say(failed)
    if one.after:
        after = one.after.replace("STORE", store.where())
        console.err.say(f"next: {after}")


def _print_tables(one: Recipe, frame: "pd.DataFrame", format_: str) -> None:
    from afield.reporting.paper import paper_caption, paper_markdown, paper_tables

    if format_ != "console":
        text = frame.to_csv(index=False) if format_ == "csv" else paper_markdown(one, frame)
        console.out.say(text)
        return
    console.out.print(Text(one.full_title, style="bold"))
    for title, header, rows in paper_tables(frame):
        table = Table(box=box.SIMPLE, title=Text(title), title_justify="left")
        for column in header:
            table.add_column(Text(column), overflow="fold")
        for row in rows:
            table.add_row(*map(Text, row))
        console.out.print(table)
    console.out.say(paper_caption(one))
