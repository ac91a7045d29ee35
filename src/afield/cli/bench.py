"""The commands of benchmarks: bench, sweep (from a file), status (from another terminal)."""

import os
import shlex
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from afield.cli import console
from afield.cli.options import (
    Average,
    Backbone,
    DomainsPerStep,
    Format,
    Methods,
    Quiet,
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
from afield.cli.report import write_store_report

if TYPE_CHECKING:
    from afield.experiments.benchmark import Benchmark

__all__ = ["bench", "status", "sweep"]

On = Annotated[
    str | None,
    typer.Option(
        metavar="PLACE",
        help="Where: local (processes, the default), ray (the cluster that runs here, or one of "
        "this machine alone), or ray://HOST:PORT.",
        show_default=False,
    ),
]
Cpus = Annotated[
    float | None, typer.Option(min=0.0, help="On Ray: CPUs of a run; by default its threads.")
]
Gpus = Annotated[
    float | None, typer.Option(min=0.0, help="On Ray: GPUs of a run, as 0.25; by default none.")
]
Retries = Annotated[
    int | None,
    typer.Option(min=0, help="On Ray: how often a run is begun again when its machine is lost."),
]
Workers = Annotated[
    int | None, typer.Option(min=1, help="Processes; by default as many as there are cores.")
]


def bench(
    dataset: Annotated[
        str, typer.Argument(help="A dataset's name, a folder root/<domain>/<class>/, or an .npz.")
    ] = "rotated_digits",
    methods: Methods = "",
    trials: Annotated[int, typer.Option(min=1, help="Repetitions with other splits.")] = 3,
    draws: Annotated[
        int, typer.Option(min=1, help="Draws of the hyperparameters; the first is the defaults.")
    ] = 1,
    rules: Rules = "",
    hold_out: Annotated[
        float,
        typer.Option(
            min=0.0, max=0.9, help="Test on this share of many domains, not on each in turn."
        ),
    ] = 0.0,
    validate: Annotated[
        float | None,
        typer.Option(min=0.0, max=0.9, help="With --hold-out: validate on this share, or 0.1."),
    ] = None,
    train_on: Annotated[
        str,
        typer.Option(
            metavar="N,…",
            help="With --hold-out: train on so many of the other domains; several numbers, and "
            "'all', give a row each.",
            show_default=False,
        ),
    ] = "",
    merges: Annotated[
        str,
        typer.Option(
            help="Merge experts, fine-tuned on one source each: names, or 'all'. See `afield list "
            "merges`.",
            show_default=False,
        ),
    ] = "",
    expert_method: Annotated[
        str,
        typer.Option(
            help="What trains the experts; several names: one expert of each, on all sources."
        ),
    ] = "erm",
    base_steps: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Steps of the experts' common start, where nothing is pretrained; by default a "
            "fifth of theirs.",
        ),
    ] = None,
    average: Average = "last",
    backbone: Backbone = None,
    weights: Weights = None,
    domains_per_step: DomainsPerStep = None,
    steps: Steps = None,
    set_: SetOption = None,
    skip_broken: SkipBroken = False,
    on: On = None,
    workers: Workers = None,
    threads: Threads = 1,
    cpus: Cpus = None,
    gpus: Gpus = None,
    retries: Retries = None,
    store: StoreOption = "runs",
    format_: Format = "console",
    tensorboard: Tensorboard = False,
    quiet: Quiet = False,
) -> None:
    """Leave each domain out once, and say how every method does on it.

    What the store has already is not done again: start it a second time to go on.
    """
    check_format(format_)
    from afield.experiments.benchmark import Benchmark

    settings = collect_settings(
        set_,
        steps=steps,
        backbone=backbone,
        weights=weights,
        domains_per_step=domains_per_step,
        skip_broken=skip_broken or None,
    )
    asked = Benchmark(
        dataset=(dataset,),
        methods=tuple(split_names(methods)),
        trials=trials,
        draws=draws,
        rules=tuple(split_names(rules)) if rules else None,
        hold_out=hold_out,
        validate=validate,
        train_on=_counts(train_on),
        merges=tuple(split_names(merges)),
        expert_method=tuple(split_names(expert_method)),
        base_steps=base_steps,
        average=average,
        store=store,
        on=on or "local",
        workers=workers,
        threads=threads,
        cpus=cpus,
        gpus=gpus or 0.0,
        retries=3 if retries is None else retries,
        settings=settings,
    )
    _carry_out(asked, form=format_, tensorboard=tensorboard, quiet=quiet)


def sweep(
    file: Annotated[Path, typer.Argument(help="A benchmark in TOML; see docs/sweeps.md.")],
    on: On = None,
    workers: Workers = None,
    cpus: Cpus = None,
    gpus: Gpus = None,
    retries: Retries = None,
    store: Annotated[
        str | None, typer.Option(help="Folder or address of the records; by default the file's.")
    ] = None,
    format_: Format = "console",
    tensorboard: Tensorboard = False,
    quiet: Quiet = False,
) -> None:
    """Do the benchmark of a file; options given here win over what it says."""
    check_format(format_)
    from afield.experiments.benchmark import read_benchmark

    places = {"on": on, "workers": workers, "cpus": cpus, "gpus": gpus, "retries": retries}
    asked = read_benchmark(file, store=store, **places)
    _carry_out(asked, form=format_, tensorboard=tensorboard, quiet=quiet)


def status(
    store: Annotated[str, typer.Argument(help="Folder or address of the records.")] = "runs",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on showing it until all is done.")
    ] = False,
) -> None:
    """Say how far the benchmarks of a store are, from any terminal or machine that sees it."""
    from afield.errors import DataError
    from afield.experiments.remote_store import open_store
    from afield.experiments.status import statuses

    place = open_store(store)
    found = statuses(place)
    if not found:
        raise DataError(f"{store}: nothing was asked for there; start `afield bench --store`")
    if follow:
        console.show_until_done(place, found[-1].plan)
        found = statuses(place)
    console.print_statuses(found)


def _carry_out(asked: "Benchmark", *, form: str, tensorboard: bool, quiet: bool) -> None:
    """Do what is missing, and show the table; the exit code is 1 where something failed."""
    from afield.compute import hostname
    from afield.experiments.record import Plan
    from afield.experiments.remote_store import open_store
    from afield.experiments.selection import resolve_rules
    from afield.experiments.sweep import complete, sort_outcomes
    from afield.experiments.tensorboard import TensorBoardWriter

    pool, store = asked.pool(), open_store(asked.store)
    with nullcontext() if quiet else console.show_progress():
        runs = asked.runs()
    store.prepare()
    done = sum(record is not None for record in store.known(runs))
    plan = Plan(
        keys=tuple(run.key for run in runs),
        known=done,
        command=shlex.join(["afield", *sys.argv[1:]]),
        host=hostname(),
        pid=os.getpid(),
        started=time.time(),
    )
    store.put_plan(plan)
    options = {"watch": TensorBoardWriter(f"{store.where()}/tensorboard")} if tensorboard else {}
    outcomes = complete(runs, store, pool=pool, threads=asked.threads, **options)
    if not quiet:
        console.print_plan(runs, done=done)
        outcomes = console.follow_outcomes(outcomes, store, plan)
    found = sort_outcomes(runs, outcomes)
    wanted = resolve_rules([rule for run in runs for rule in run.rules])
    whole = console.print_outcomes(found, store, output_format=form, rules=wanted, quiet=quiet)
    write_store_report(store, quiet=quiet)
    if not whole:
        raise typer.Exit(1)


def _counts(text: str) -> tuple[int | str, ...]:
    """Numbers of domains, or 'all'."""
    from afield.errors import SpecError

    if text and not split_names(text):
        raise SpecError(f"--train-on {text}: write numbers of domains, as 5,10,all")
    return tuple(split_names(text))
