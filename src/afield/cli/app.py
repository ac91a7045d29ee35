"""The command line: read arguments, call one function, print. Heavy imports are inside."""

import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from afield import registry
from afield.cli import console
from afield.cli.bench import bench, status, sweep
from afield.cli.data import data
from afield.cli.merge import MergeCommand, merge
from afield.cli.model import export, fit, predict
from afield.cli.options import (
    Average,
    Backbone,
    DomainsPerStep,
    Format,
    Rules,
    SetOption,
    SkipBroken,
    Steps,
    StoreOption,
    Tensorboard,
    Threads,
    Weights,
    check_format,
    collect_settings,
    split_names,
)
from afield.cli.report import report
from afield.errors import AfieldError, SpecError, UnknownNameError

if TYPE_CHECKING:
    from afield.experiments.record import Failure, Record, Run
    from afield.experiments.store import Store
    from afield.training.evaluation import Checkpoint

__all__ = ["app", "main"]

_stopped = threading.Event()

app = typer.Typer(
    help="Domain generalization: trained at home, tested afield.",
    no_args_is_help=True,
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(bench)
app.command()(sweep)
app.command()(status)
app.add_typer(data, name="data")
app.command(cls=MergeCommand)(merge)
for command in (fit, predict, export):
    app.command()(command)
app.command()(report)


@app.callback()
def afield(
    version: Annotated[bool, typer.Option("--version", help="Say the version, and end.")] = False,
) -> None:
    """Domain generalization: trained at home, tested afield."""
    if version:
        from importlib.metadata import version as installed

        console.out.print(f"afield {installed('afield')}")
        raise typer.Exit


@app.command()
def train(
    dataset: Annotated[str | None, typer.Argument(help="A dataset's name or path.")] = None,
    method: Annotated[str | None, typer.Argument(help="A method's name.")] = None,
    target: Annotated[
        list[str] | None, typer.Option(help="Domain to leave out; may be given several times.")
    ] = None,
    like: Annotated[
        str | None, typer.Option(help="Repeat the run of this folder or address: runs/erm-….")
    ] = None,
    trial: Annotated[int, typer.Option(min=0, help="Which split and seed.")] = 0,
    draw: Annotated[int, typer.Option(min=0, help="Which hyperparameters; 0: defaults.")] = 0,
    average: Average = "last",
    backbone: Backbone = None,
    weights: Weights = None,
    domains_per_step: DomainsPerStep = None,
    steps: Steps = None,
    set_: SetOption = None,
    skip_broken: SkipBroken = False,
    threads: Threads = 1,
    store: StoreOption = "runs",
    tensorboard: Tensorboard = False,
) -> None:
    """Train one model and say how it does on the domains that it has not seen."""
    from afield.experiments.benchmarking import plan_run
    from afield.experiments.remote_store import fetch_run, open_store
    from afield.experiments.runner import execute
    from afield.experiments.store import read_record
    from afield.experiments.tensorboard import TensorBoardWriter

    settings = collect_settings(
        set_,
        steps=steps,
        backbone=backbone,
        weights=weights,
        domains_per_step=domains_per_step,
        skip_broken=skip_broken or None,
    )
    if like is not None:
        if dataset or target or settings or (trial, draw, average) != (0, 0, "last"):
            raise SpecError("--like repeats a run as it is: give no other setting beside it")
        run = read_record(fetch_run(like)).run
    elif dataset is None or method is None:
        raise SpecError("give a dataset and a method, or --like and a run's folder")
    else:
        with console.show_progress():
            run = plan_run(
                dataset,
                method,
                target=target or (),
                trial=trial,
                draw=draw,
                average=average,
                settings=settings,
            )
    place = open_store(store)
    written = TensorBoardWriter(f"{place.where()}/tensorboard") if tensorboard else None
    with console.progress_bar(f"{run.method} on {run.dataset}", run.steps) as advance:

        def watch(run: "Run", checkpoint: "Checkpoint") -> None:
            advance(checkpoint.step)
            if written is not None:
                written(run, checkpoint)

        record = execute(run, place, threads=threads, watch=watch)
    console.print_record(record, place.where(run))


@app.command()
def embed(
    dataset: Annotated[str, typer.Argument(help="A dataset's name or path.")],
    out: Annotated[Path, typer.Option(help="File to write; .npz is added.")],
    backbone: Annotated[
        str | None, typer.Option(help="Pretrained network; by default the dataset's, or resnet18.")
    ] = None,
    weights: Weights = None,
    size: Annotated[int | None, typer.Option(min=16, help="Pixels a side.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; by default all.")] = None,
    skip_broken: SkipBroken = False,
) -> None:
    """Write the frozen features of all samples: a dataset that every command takes."""
    from afield.experiments.embedding import embed as embedded

    with console.show_progress():
        path = embedded(
            dataset,
            out,
            backbone=backbone,
            weights=weights,
            size=size,
            threads=threads,
            skip_broken=skip_broken,
        )
    console.out.print(
        f"features in {path}; now `afield bench {path}`", markup=False, soft_wrap=True
    )


@app.command()
def table(
    store: Annotated[str, typer.Argument(help="Folder or address of the records.")] = "runs",
    rules: Rules = "all",
    format_: Format = "console",
) -> None:
    """Show what a store holds: one table a dataset, all selection rules for which it suffices."""
    check_format(format_)
    from afield.experiments.selection import resolve_rules

    place, records = _records_of(store)
    known: list[Record | Failure] = [*records, *place.failures()]
    console.print_outcomes(
        known, place, output_format=format_, rules=resolve_rules(split_names(rules))
    )


@app.command()
def diagnose(
    name: Annotated[str, typer.Argument(help="A diagnostic; see `afield list diagnostics`.")],
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="Folder of a run, as runs/erm-…; for sensitivity and calibration the store, for "
            "loss_surface one run or three.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="Picture to write (png, svg, pdf); by default it goes to the store, as "
            "runs/diagnostics/NAME-RUN.png, where the report finds it."
        ),
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of the diagnostic, as steps=10.")
    ] = None,
    threads: Threads = 1,
) -> None:
    """Look into finished runs: a picture, its numbers as CSV beside it, and what they say."""
    from afield.diagnosis.diagnosing import diagnose as diagnosed
    from afield.diagnosis.diagnostic import prepare_figure_path
    from afield.reporting.findings import finding_path, keep

    settings = collect_settings(set_)
    target = None if out is None else prepare_figure_path(out)
    with console.show_progress():
        finding = diagnosed(name, paths, settings=settings, threads=threads)
    picture, *tables = finding.save(target or finding_path(name, paths, settings))
    if target is None:
        keep(picture, finding.told, name, paths, settings)
    console.out.print(finding.told, markup=False, soft_wrap=True)
    numbers = ", ".join(map(str, tables))
    console.err.print(f"picture in {picture}, numbers in {numbers}", markup=False, soft_wrap=True)


@app.command(name="list")
def list_(
    kind: Annotated[
        str | None, typer.Argument(help="methods, averages, merges, datasets or diagnostics.")
    ] = None,
) -> None:
    """List what there is, with a line on each."""
    if kind is not None and kind not in registry.KINDS:
        raise UnknownNameError(f"no kind {kind!r}; {registry.hint(kind, registry.KINDS)}")
    for each in [kind] if kind else registry.KINDS:
        table = Table(title=each, title_justify="left", show_header=False, box=None)
        for name in registry.names(each):
            table.add_row(Text(name, style="bold"), Text(registry.summary(each, name)))
        console.out.print(table)


@app.command()
def explain(
    name: Annotated[str, typer.Argument(help="A method, average, merge, dataset or diagnostic.")],
) -> None:
    """Say what one of these is, with its settings, their defaults and ranges."""
    from afield.cli.explain import explanation_text

    console.out.print(explanation_text(name), markup=False, soft_wrap=True)


@app.command()
def export_domainbed(
    runs: Annotated[str, typer.Argument(help="Folder or address of the records.")],
    into: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write.")],
    dataset: Annotated[
        str | None,
        typer.Option(help="A dataset's name in DomainBed, whose script shows only those it knows."),
    ] = None,
) -> None:
    """Write records as DomainBed's results.jsonl, for its collect_results script."""
    from afield.reporting.domainbed import export_domainbed as export

    folders = export(_records_of(runs)[1], into, dataset=dataset)
    console.out.print(f"{len(folders)} runs written to {into}", markup=False)


def main() -> None:
    """Run the command line; errors of the user's making are one line and exit code 2."""
    # The hub would tell of every try, twice; when it gives up, there is one error.
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    logging.basicConfig(
        level=logging.WARNING, format="note: %(message)s", handlers=[console.NoteHandler()]
    )
    signal.signal(signal.SIGINT, _stop)
    try:
        app()
    except SystemExit as end:
        # Whatever ends a call of Ray's has a code of Ray's.
        sys.exit(130 if _stopped.is_set() else end.code)
    except AfieldError as error:
        _fail(error)
    except BrokenPipeError:
        sys.exit(1)
    except OSError as error:
        _fail(error)


def _fail(error: Exception) -> None:
    console.err.print(f"error: {' '.join(str(error).split())}", markup=False, soft_wrap=True)
    sys.exit(2)


def _stop(*_: object) -> None:
    """Ctrl-C: stop at once, workers too. What is finished is on disk, the rest can go on."""
    _stopped.set()
    console.err.print("stopped; start it again to go on")
    sys.exit(130)


def _records_of(address: str) -> "tuple[Store, list[Record]]":
    from afield.errors import DataError
    from afield.experiments.remote_store import open_store

    store = open_store(address)
    records = list(store)
    if not records and not store.failures():
        raise DataError(f"{address}: no records there; run `afield bench --store {address}` first")
    return store, records
