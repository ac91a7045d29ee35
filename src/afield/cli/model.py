"""The commands ``afield fit``, ``predict`` and ``export``: a model in use, and what it answers."""

import sys
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from afield.cli import console
from afield.cli.options import (
    Average,
    Backbone,
    SetOption,
    SkipBroken,
    Steps,
    StoreOption,
    Threads,
    Weights,
    collect_settings,
)
from afield.errors import SpecError

if TYPE_CHECKING:
    from afield.deployment.model import Model, Prediction
    from afield.deployment.predictions import Columns

__all__ = ["export", "fit", "predict"]

ModelFolder = Annotated[
    Path, typer.Argument(metavar="MODEL", help="Folder that `afield fit` has written.")
]


def fit(
    dataset: Annotated[str, typer.Argument(help="A dataset's name or path.")],
    method: Annotated[
        str | None,
        typer.Argument(help="A method's name; or 'best': what the bench in the store shows."),
    ] = None,
    *,
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    method_: Annotated[
        str | None, typer.Option("--method", help="The same as METHOD.", show_default=False)
    ] = None,
    average: Average = "last",
    backbone: Backbone = None,
    weights: Weights = None,
    steps: Steps = None,
    set_: SetOption = None,
    skip_broken: SkipBroken = False,
    no_estimate: Annotated[
        bool,
        typer.Option(
            "--no-estimate",
            help="Hold no domain out: nothing is known of unseen domains then, and no confidence "
            "is calibrated.",
        ),
    ] = False,
    trials: Annotated[
        int, typer.Option(min=1, help="How often each domain is left out, for the estimate.")
    ] = 1,
    hold_out: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=0.9,
            help="Hold this share of the domains out at once; by default each in turn, or, of more "
            "than twelve, a quarter.",
            show_default=False,
        ),
    ] = 0.0,
    licence: Annotated[
        str, typer.Option("--license", help="Of the model, for its card.", show_default=False)
    ] = "",
    force: Annotated[
        bool, typer.Option("--force", help="Replace the folder of another model.")
    ] = False,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes; by default as many as there are cores.")
    ] = None,
    threads: Threads = 1,
    store: StoreOption = "runs",
) -> None:
    """Train on all domains, and write a folder that holds all that is needed to use the model.

    First each domain is left out once, to know what is to be expected of an unseen one, and to
    calibrate confidences for it; what the store has already is not done again.
    """
    from afield.deployment.fitting import fit as fitted
    from afield.experiments.sweep import Local, default_workers

    if method and method_ and method != method_:
        raise SpecError(f"METHOD is {method}, but --method {method_}; give one of them")
    chosen = method or method_
    if chosen is None:
        raise SpecError("which method? See `afield list methods`, or give 'best' after a bench")
    settings = collect_settings(
        set_, steps=steps, backbone=backbone, weights=weights, skip_broken=skip_broken or None
    )
    with console.show_progress():
        model = fitted(
            dataset,
            chosen,
            out,
            store=store,
            average=average,
            settings=settings,
            estimate=not no_estimate,
            trials=trials,
            hold_out=hold_out,
            licence=licence,
            overwrite=force,
            pool=Local(workers or default_workers(threads)),
            threads=threads,
        )
    _print_model(model, out)


def _print_model(model: "Model", out: Path) -> None:
    from afield.reporting.results import row_label

    found, calibration = model.about.estimate, model.about.calibration
    if found is None:
        console.out.print("unseen domains: not estimated")
    else:
        error = f" ± {100 * found.stderr:.1f}" if found.stderr is not None else ""
        trials = f"{found.trials} trial{'s' * (found.trials > 1)}"
        console.out.print(
            f"unseen domains: {100 * found.accuracy:.1f} %{error} right (worst "
            f"{100 * found.worst:.1f} %; {len(found.domains)} domains left out, {trials})"
        )
    if found is not None and found.recipes > 1 and model.about.run is not None:
        told = f"chosen among {found.recipes} recipes by this number, which is a little too good"
        console.out.print(f"{row_label(model.about.run)}: {told}", markup=False, soft_wrap=True)
    if calibration is not None:
        console.out.print(
            f"confidence: temperature {calibration.temperature:.2f}, calibration error on them "
            f"{100 * calibration.error_before:.1f} % before, {100 * calibration.error_after:.1f} % "
            "after"
        )
    console.out.print(f"model in {out}", markup=False, soft_wrap=True)


def predict(
    model: ModelFolder,
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Files, or folders with files at any depth."),
    ],
    *,
    out: Annotated[
        Path | None,
        typer.Option(help="File to write: .csv, .jsonl or .parquet; by default standard output."),
    ] = None,
    domain: Annotated[
        str | None,
        typer.Option(help="The source that all files are from, where the model can use that."),
    ] = None,
    abstain: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=1.0,
            help="Mark the predictions that should go to a person: those below the confidence "
            "below which this share of the samples of held-out domains lay, and those further "
            "away than all of these. Of data that are harder than these domains, more than this "
            "share is marked.",
        ),
    ] = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="A column for every class.")
    ] = False,
    batch: Annotated[int, typer.Option(min=1, help="Samples at once.")] = 64,
    threads: Annotated[
        int | None,
        typer.Option(
            min=1, help="CPU threads of the network; by default all; one for a small: network."
        ),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="Where to compute, as cuda; by default the fastest.")
    ] = None,
) -> None:
    """Say for every file which class it is, how surely, and how far it is from the sources.

    A file that cannot be read has a row with its error, and stops nothing.
    """
    from afield.deployment.model import load
    from afield.deployment.predictions import Columns, check_output_file, write_predictions
    from afield.experiments.runner import default_device

    if out is not None:
        check_output_file(out)
    loaded = load(model, device=device or default_device())
    _set_threads(threads, loaded)
    columns = Columns(
        threshold=None if abstain is None else loaded.threshold(abstain),
        classes=loaded.classes if probabilities else (),
    )
    loaded.domain_index(domain)
    _tell_uncalibrated(loaded)
    counted = _Count()
    # A bar would get between the rows on a terminal.
    with console.show_progress():
        answers: Iterator[Prediction] = counted.of(
            loaded.predictions(paths, domain=domain, batch=batch)
        )
        first = next(answers, None)
        if first is None:
            raise SpecError(f"no files there; {loaded.about.name} takes {loaded.about.inputs.told}")
        answers = chain([first], answers)
        if out is not None:
            write_predictions(answers, out, columns)
        else:
            _print_predictions(answers, columns)
    counted.tell(out)


def _set_threads(threads: int | None, model: "Model") -> None:
    import torch

    # Threads that share a small network mostly wait for each other, and keep the cores from those
    # that read files.
    if threads is None and model.about.architecture.backbone.startswith("small:"):
        threads = 1
    if threads is not None:
        torch.set_num_threads(threads)


def _tell_uncalibrated(model: "Model") -> None:
    if model.about.calibration is None:
        console.err.print(
            "note: nothing is known of unseen domains; confidences are not calibrated",
            soft_wrap=True,
        )


class _Count:
    """How many predictions there are, and how many files could not be read."""

    def __init__(self) -> None:
        self.every = self.broken = 0

    def of(self, answers: "Iterable[Prediction]") -> "Iterator[Prediction]":
        """The same, counted."""
        for answer in answers:
            self.every += 1
            self.broken += bool(answer.error)
            yield answer

    def tell(self, out: Path | None) -> None:
        """Say it; nothing but errors is a failure."""
        where = f" in {out}" if out else ""
        good = self.every - self.broken
        told = f"{good} prediction{'s' * (good != 1)}{where}"
        if self.broken:
            told += f"; {self.broken} could not be read, see the column error"
        console.err.print(told, markup=False, soft_wrap=True)
        if self.broken == self.every:
            raise typer.Exit(1)


def _print_predictions(answers: "Iterable[Prediction]", columns: "Columns") -> None:
    """A table on a terminal, CSV elsewhere."""
    from afield.deployment.predictions import csv_lines

    rows = (columns.row(answer) for answer in answers)
    if not console.out.is_terminal:
        for line in csv_lines(rows, columns):
            sys.stdout.write(line)
        return
    table = Table(box=box.SIMPLE)
    for name in columns.names:
        words = name in ("file", "class", "error")
        table.add_column(name, justify="left" if words else "right", overflow="fold")
    for row in rows:
        style = "bold" if row.get("abstain") or row["error"] else ""
        table.add_row(*(Text(_shown(row[name])) for name in columns.names), style=style)
    console.out.print(table)


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def export(
    model: ModelFolder,
    *,
    to: Annotated[str, typer.Option(help="onnx, or torch (a program of torch.export).")] = "onnx",
    out: Annotated[
        Path | None, typer.Option(help="File to write; by default MODEL.onnx or MODEL.pt2.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Write the model for other programs, for batches of any length.

    Scaling, temperature and softmax are in it: x (float32, as stored, at the network's size) goes
    in, logits and calibrated probabilities come out. It is kept only if it gives the same as here.
    """
    from afield.deployment.exporting import CHECKED_BATCH_SIZES, TOLERANCE
    from afield.deployment.exporting import export as exported
    from afield.deployment.model_folder import read_description

    with console.show_progress():
        path = exported(model, to, out, overwrite=force)  # type: ignore[arg-type]
    inputs = read_description(model.expanduser()).inputs
    form = " × ".join(("n", *map(str, inputs.shape)))
    level = ", 0 to 255" * (inputs.dtype == "uint8")
    console.out.print(f"{path}: x ({form}, float32{level}) to logits and probabilities")
    batches = ", ".join(map(str, CHECKED_BATCH_SIZES))
    told = f"the same to {TOLERANCE:g} for batches of {batches}; files are not read in it"
    more = f", nor are pictures resized to {inputs.size} px" if inputs.kind == "pictures" else ""
    console.out.print(told + more, soft_wrap=True)
