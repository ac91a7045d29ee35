"""The command ``afield train``: one run."""

import inspect
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from afield.cli import console, options
from afield.data.listing import listed_once
from afield.errors import SpecError

if TYPE_CHECKING:
    from afield.runs.record import Record
    from afield.runs.run import Run
    from afield.runs.store import Store
    from afield.training.scores import Checkpoint


# The options that say where a run is done, and not what it is.
PLACE = ("store", "threads", "device")


@listed_once()
@options.with_options(
    *("label", "domain", "column_types", "drop"),
    *("average", "start", "classes", "steps", "backbone", "weights"),
    *("tune", "finetune"),
    *("domains_per_step", "set_", "skip_broken", *PLACE),
    device=None,
)
def train(
    dataset: Annotated[
        str | None,
        typer.Argument(
            metavar="DATASET", help="Name or path of a dataset; see `afield data list`."
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Argument(metavar="METHOD", help="Name of a method; see `afield list methods`."),
    ] = None,
    *,
    target: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DOMAIN",
            help="Domain to leave out of training and to test on; repeat the option for several. "
            "Default: none; train on all domains.",
        ),
    ] = None,
    like: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help="Repeat the run in this folder or at this address, e.g. runs/erm-…, with its own "
            "settings. Replaces DATASET, METHOD and all settings.",
        ),
    ] = None,
    trial: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="Number of the trial; sets the split and the seed."),
    ] = 0,
    draw: Annotated[
        int,
        typer.Option(
            min=0, metavar="N", help="Number of the hyperparameter sample; 0 uses the defaults."
        ),
    ] = 0,
    tensorboard: options.Tensorboard = False,
    **values: Any,
) -> None:
    """Train one model and show its accuracy on the domains it has not seen."""
    from afield.runs.store import open_store
    from afield.studies.planning import check_run, plan_training

    values |= {
        "dataset": dataset,
        "method": method,
        "target": target,
        "trial": trial,
        "draw": draw,
    }
    words = options.read_options(values)
    place = {name: words.pop(name) for name in PLACE}
    if like is not None:
        declared = inspect.signature(train).parameters
        changed = {name for name, value in values.items() if value != declared[name].default}
        if changed - set(PLACE):
            raise SpecError("--like repeats a run with its own settings; remove the other settings")
        known = _read_record(like)
        runs = [run := known.run]
        check_run(run)
    elif dataset is None or method is None:
        raise SpecError(
            "no dataset and method given; write `afield train DATASET METHOD` or "
            "`afield train --like RUN`"
        )
    else:
        with console.show_progress():
            source = options.name_dataset(words.pop("dataset"), words)
            runs = plan_training(source, words.pop("method"), **words | {"target": target or ()})
    record = _execute(runs, open_store(place.pop("store")), tensorboard=tensorboard, **place)
    first = "first weights"
    if like is not None and known.versions.get(first) != record.versions.get(first):
        console.err.say(
            f"note: {run.backbone} starts from other weights than in {like}, because code that it "
            "calls has changed"
        )


def _read_record(address: str) -> "Record":
    from afield.runs.run_files import read_record
    from afield.runs.store import fetch_run

    return read_record(fetch_run(address))


def _execute(
    runs: "list[Run]", store: "Store", *, threads: int, device: str | None, tensorboard: bool
) -> "Record":
    """Train the last run with a progress bar, after those it starts from; print its accuracies."""
    from afield.compute import keep_freed_memory
    from afield.runs.runner import execute
    from afield.runs.tensorboard import TensorBoardWriter

    keep_freed_memory()
    *starts, run = runs
    _print_idle_cores(threads)
    for each in starts:
        execute(each, store, threads=threads, device=device)
    writer = TensorBoardWriter(f"{store.where()}/tensorboard") if tensorboard else None
    with console.progress_bar(f"{run.method} on {run.dataset}", run.steps) as advance:

        def watch(run: "Run", checkpoint: "Checkpoint") -> None:
            advance(checkpoint.step)
            if writer is not None:
                writer(run, checkpoint)

        record = execute(run, store, threads=threads, device=device, watch=watch)
    _print_record(record, store.where(run))
    return record


def _print_idle_cores(threads: int) -> None:
    """Say how many cores a run leaves idle. One thread is the default, so that runs repeat."""
    from afield.compute import default_device, usable_cores

    idle = usable_cores() - threads
    if idle > 0 and default_device() == "cpu":
        cores = f"{idle} core{'s' * (idle > 1)}"
        console.err.say(
            f"training on {threads} thread{'s' * (threads > 1)}; {cores} idle: --threads "
            f"{threads + idle} uses all, which may change the last digits of the results"
        )


def _print_record(record: "Record", folder: str) -> None:
    """Print accuracies on the validation splits of the sources, and on unseen domains."""
    from afield.runs.selection import selection_value

    run, last = record.run, record.checkpoints[-1]
    best = max(record.candidates, key=lambda checkpoint: selection_value(checkpoint, run))
    size = f" at {run.size} px" if run.size else ""
    title = f"{run.method} with {run.backbone}{size}: accuracy (%)"
    table = Table(title=title, title_justify="left", box=box.SIMPLE)
    for column in ("domain", "split", f"best on sources (step {best.step})", "last"):
        table.add_column(column, justify="left" if column in ("domain", "split") else "right")
    of_source = {"probe": "validation", "known": "validation, domain label given"}
    of_source["test"] = "test"
    for domain in record.domains:
        is_source = domain in run.sources
        for part, split in (of_source if is_source else {"main": "unseen"}).items():
            scores = [checkpoint.score(domain, part) for checkpoint in (best, last)]
            # Few methods can use the domain label, and few datasets have three lists.
            if part not in ("known", "test") or any(scores):
                cells = [f"{100 * score.accuracy:.1f}" if score else "–" for score in scores]
                table.add_row(Text(domain, style="" if is_source else "bold"), split, *cells)
    console.out.print(table)
    for domain in record.unseen:
        score = best.score(domain, "main")
        if score is not None and score.unseen_classes:
            confidence = 100 * (score.unseen_confidence or 0.0)
            console.out.say(
                f"{domain}: {score.unseen_classes} samples of classes that no source has are left "
                f"out; mean confidence on them {confidence:.1f} %"
            )
    console.err.say(f"record and weights in {folder}")
