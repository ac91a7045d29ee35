"""The command ``afield predict``: what a model says of files."""

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
from afield.cli.options import ModelFolder
from afield.errors import SpecError

if TYPE_CHECKING:
    from afield.deployment.model import Model, Prediction
    from afield.deployment.predictions import Columns

__all__ = ["predict"]


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
    from afield.compute import default_device
    from afield.deployment.model import load
    from afield.deployment.predictions import Columns, check_output_file, write_predictions

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
