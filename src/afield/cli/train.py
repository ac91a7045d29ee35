"""The commands ``afield train`` and ``afield embed``: one run, and the features of a dataset."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from afield.cli import console
from afield.cli.options import (
    Average,
    Backbone,
    DomainsPerStep,
    SetOption,
    SkipBroken,
    Steps,
    StoreOption,
    Tensorboard,
    Threads,
    Weights,
    collect_settings,
)
from afield.errors import SpecError

if TYPE_CHECKING:
    from afield.experiments.record import Run
    from afield.training.evaluation import Checkpoint

__all__ = ["embed", "train"]


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
