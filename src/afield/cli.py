"""The command line: read arguments, call one function, print. Heavy imports are inside."""

import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from afield import catalog, console
from afield.arguments import assignments
from afield.cli_data import data
from afield.cli_merge import MergeCommand, merge
from afield.cli_report import leave_report, report
from afield.errors import AfieldError, SpecError, UnknownNameError

if TYPE_CHECKING:
    from afield.record import Failure, Record

__all__ = ["app", "main"]

app = typer.Typer(
    help="Domain generalization: trained at home, tested afield.",
    no_args_is_help=True,
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(data, name="data")
app.command(cls=MergeCommand)(merge)
app.command()(report)
Methods = Annotated[
    str,
    typer.Option(
        help="Names, separated by commas, or 'all'; by default a short list. See `afield list`.",
        show_default=False,
    ),
]
Rules = Annotated[
    str,
    typer.Option(
        help="Selection rules: sources, left-out-source (more runs), validation (with --hold-out), "
        "target; or 'all'. By default those that need no further runs.",
        show_default=False,
    ),
]
StoreOption = Annotated[Path, typer.Option(help="Folder of the records.")]
Average = Annotated[str, typer.Option(help="What is deployed: last, ema, swa or swad.")]
Backbone = Annotated[str | None, typer.Option(help="Network; by default what fits the data.")]
Weights = Annotated[
    str | None,
    typer.Option(help="First weights of the network: hub, none, or a file; by default what fits."),
]
SkipBroken = Annotated[
    bool, typer.Option("--skip-broken", help="Leave out files that cannot be read.")
]
DomainsPerStep = Annotated[
    int | None, typer.Option(min=1, help="Source domains that a step draws from; by default all.")
]
Steps = Annotated[int | None, typer.Option(help="Training steps; by default the dataset's.")]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Another setting: lr, batch, weight_decay, optimizer (sgd:momentum=0.9), lr_schedule "
        "(cosine:warmup=500), clip_norm, every, size, augment (none, light, full), freeze_bn, "
        "balance, limit, or a method's own (vrex.penalty=1).",
    ),
]
Threads = Annotated[int, typer.Option(min=1, help="CPU threads of each run.")]
Format = Annotated[str, typer.Option("--format", help="console, md, latex or csv.")]


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
    set_: Set = None,
    skip_broken: SkipBroken = False,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes; by default as many as there are cores.")
    ] = None,
    threads: Threads = 1,
    store: StoreOption = Path("runs"),
    format_: Format = "console",
) -> None:
    """Leave each domain out once, and say how every method does on it.

    What the store has already is not done again: start it a second time to go on.
    """
    _check_format(format_)
    from afield.jobs import plan
    from afield.record import Store
    from afield.selection import checked_rules
    from afield.sweep import Local, complete, in_order

    if validate is not None and not hold_out:
        raise SpecError("--validate goes with --hold-out: it is a share of the domains held out")
    settings = _settings(
        set_,
        steps=steps,
        backbone=backbone,
        weights=weights,
        domains_per_step=domains_per_step,
        skip_broken=skip_broken or None,
    )
    with console.progress_shown():
        runs = plan(
            dataset,
            _split(methods),
            trials=trials,
            draws=draws,
            rules=_split(rules) if rules else None,
            test=hold_out,
            validate=0.1 if validate is None else validate,
            train_on=_counts(train_on),
            merges=_split(merges),
            expert_methods=_split(expert_method),
            base_steps=base_steps,
            average=average,
            settings=settings,
        )
    wanted = checked_rules([rule for run in runs for rule in run.rules])
    Store(store).prepare()
    done = sum(Store(store).get(run) is not None for run in runs)
    console.print_plan(runs, done=done)
    pool = Local(workers or _default_workers(threads))
    outcomes = complete(runs, Store(store), pool=pool, threads=threads)
    found = in_order(runs, console.followed(outcomes, len(runs)))
    whole = console.print_outcomes(found, store, form=format_, rules=wanted)
    leave_report(store)
    if not whole:
        raise typer.Exit(1)


@app.command()
def train(
    dataset: Annotated[str | None, typer.Argument(help="A dataset's name or path.")] = None,
    method: Annotated[str | None, typer.Argument(help="A method's name.")] = None,
    target: Annotated[
        list[str] | None, typer.Option(help="Domain to leave out; may be given several times.")
    ] = None,
    like: Annotated[
        Path | None, typer.Option(help="Repeat the run of this folder, e.g. runs/erm-….")
    ] = None,
    trial: Annotated[int, typer.Option(min=0, help="Which split and seed.")] = 0,
    draw: Annotated[int, typer.Option(min=0, help="Which hyperparameters; 0: defaults.")] = 0,
    average: Average = "last",
    backbone: Backbone = None,
    weights: Weights = None,
    domains_per_step: DomainsPerStep = None,
    steps: Steps = None,
    set_: Set = None,
    skip_broken: SkipBroken = False,
    threads: Threads = 1,
    store: StoreOption = Path("runs"),
) -> None:
    """Train one model and say how it does on the domains that it has not seen."""
    from afield.jobs import planned
    from afield.record import Store, read_record
    from afield.runner import execute

    settings = _settings(
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
        run = read_record(like).run
    elif dataset is None or method is None:
        raise SpecError("give a dataset and a method, or --like and a run's folder")
    else:
        with console.progress_shown():
            run = planned(
                dataset,
                method,
                target=target or (),
                trial=trial,
                draw=draw,
                average=average,
                settings=settings,
            )
    with console.bar(f"{run.method} on {run.dataset}", run.steps) as advance:
        record = execute(
            run, Store(store), threads=threads, watch=lambda checkpoint: advance(checkpoint.step)
        )
    console.print_record(record, Store(store).folder(run))


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
    from afield.embedding import embed as embedded

    with console.progress_shown():
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
    store: Annotated[Path, typer.Argument(help="Folder of the records.")] = Path("runs"),
    rules: Rules = "all",
    format_: Format = "console",
) -> None:
    """Show what a store holds: one table a dataset, all selection rules for which it suffices."""
    _check_format(format_)
    from afield.record import Store
    from afield.selection import checked_rules

    known: list[Record | Failure] = [*_records_of(store), *Store(store).failures()]
    console.print_outcomes(known, store, form=format_, rules=checked_rules(_split(rules)))


@app.command()
def diagnose(
    name: Annotated[str, typer.Argument(help="A diagnostic; see `afield list diagnostics`.")],
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="Folder of a run, as runs/erm-…; for sensitivity the store, for loss_surface one "
            "run or three.",
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
    from afield.diagnosis import diagnose as diagnosed
    from afield.diagnostic import checked_picture
    from afield.gallery import kept_at, note

    settings = _settings(set_)
    target = None if out is None else checked_picture(out)
    with console.progress_shown():
        finding = diagnosed(name, paths, settings=settings, threads=threads)
    picture, *tables = finding.save(target or kept_at(name, paths, settings))
    if target is None:
        note(picture, finding.told, name, paths, settings)
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
    if kind is not None and kind not in catalog.KINDS:
        raise UnknownNameError(f"no kind {kind!r}; {catalog.hint(kind, catalog.KINDS)}")
    for each in [kind] if kind else catalog.KINDS:
        table = Table(title=each, title_justify="left", show_header=False, box=None)
        for name in catalog.names(each):
            table.add_row(Text(name, style="bold"), Text(catalog.summary(each, name)))
        console.out.print(table)


@app.command()
def explain(
    name: Annotated[str, typer.Argument(help="A method, average, merge, dataset or diagnostic.")],
) -> None:
    """Say what one of these is, with its settings, their defaults and ranges."""
    from afield.explanation import explained

    console.out.print(explained(name), markup=False, soft_wrap=True)


@app.command()
def export_domainbed(
    runs: Annotated[Path, typer.Argument(help="Folder of the records.")],
    into: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write.")],
    dataset: Annotated[
        str | None,
        typer.Option(help="A dataset's name in DomainBed, whose script shows only those it knows."),
    ] = None,
) -> None:
    """Write records as DomainBed's results.jsonl, for its collect_results script."""
    from afield.domainbed import export_domainbed as export

    folders = export(_records_of(runs), into, dataset=dataset)
    console.out.print(f"{len(folders)} runs written to {into}", markup=False)


def main() -> None:
    """Run the command line; errors of the user's making are one line and exit code 2."""
    # The hub would tell of every try, twice; when it gives up, there is one error.
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    logging.basicConfig(
        level=logging.WARNING, format="note: %(message)s", handlers=[console.Notes()]
    )
    signal.signal(signal.SIGINT, _stop)
    try:
        app()
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
    console.err.print("stopped; start it again to go on")
    sys.exit(130)


def _default_workers(threads: int) -> int:
    """As many as the cores that this process may use can carry; one where there is a GPU."""
    from afield.runner import default_device

    if default_device() != "cpu":
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, (cores or 1) // threads)


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def _counts(text: str) -> list[int | None]:
    """Numbers of domains; None are all of them."""
    found: list[int | None] = []
    for word in _split(text):
        if word != "all" and not word.isdecimal():
            raise SpecError(f"--train-on {word}: write numbers of domains, as 5,10,all")
        found.append(None if word == "all" else int(word))
    if text and not found:
        raise SpecError(f"--train-on {text}: write numbers of domains, as 5,10,all")
    return found


def _settings(pairs: list[str] | None, **named: Any) -> dict[str, Any]:
    """Settings from ``name=value`` and from options that were given."""
    found = {name: value for name, value in named.items() if value is not None}
    return {**found, **assignments(pairs or [])}


def _check_format(name: str) -> None:
    known = ["console", "md", "latex", "csv"]
    if name not in known:
        raise UnknownNameError(f"no format {name!r}; {catalog.hint(name, known)}")


def _records_of(folder: Path) -> "list[Record]":
    from afield.errors import DataError
    from afield.record import Store

    records = list(Store(folder))
    if not records and not Store(folder).failures():
        raise DataError(f"{folder}: no records there; run `afield bench --store {folder}` first")
    return records
