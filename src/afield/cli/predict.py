"""The command ``afield predict``: predict the classes of files with a model."""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from afield import own_code
from afield.cli import console, options
from afield.errors import SpecError
from afield.files import check_output

if TYPE_CHECKING:
    from afield.deployment.model import Model
    from afield.deployment.predictions import Columns, Prediction


# More predictions than this are counted by class on a terminal, which shows so many classes.
MAX_ROWS, MAX_CLASSES = 50, 30


def predict(
    model: options.ModelFolder,
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...", help="Files, or folders, which are searched for files at any depth."
        ),
    ],
    *,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File to write (.csv, .jsonl or .parquet). Default: print a table, or CSV if the "
            "output is redirected.",
        ),
    ] = None,
    force: options.Force = False,
    domain: Annotated[
        str | None,
        typer.Option(
            metavar="DOMAIN",
            help="Source domain of all files, for models that use the domain label. Default: "
            "unknown.",
        ),
    ] = None,
    abstain: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=1.0,
            metavar="SHARE",
            help="Add a column that marks predictions a person should check: the least confident "
            "ones, and samples farther from the training data than every held-out sample. The "
            "threshold marks this share of the samples of held-out domains, e.g. 0.1; "
            "on harder data it marks more.",
        ),
    ] = None,
    coverage: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="Add the columns set and set_worst: the classes among which the true one was for "
            "this share of the samples of held-out domains, e.g. 0.9, on average over the domains "
            "and on the worst of them.",
        ),
    ] = None,
    adapt: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Test-time adaptation: predict with the help of the other files, without labels. "
            "All files should come from one domain, in mixed order; see `afield list "
            "adaptations`. 'none' predicts each file by itself. Default: the adaptation that the "
            "model was fitted for, if any.",
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Setting of the adaptation, e.g. t3a.keep=20; repeat the option for several.",
        ),
    ] = None,
    text: Annotated[
        str,
        typer.Option(
            metavar="COLUMN",
            help="Column of a table with the texts. Default: that of the training data.",
            show_default=False,
        ),
    ] = "",
    probabilities: Annotated[
        bool,
        typer.Option("--probabilities", help="Add a column with the probability of each class."),
    ] = False,
    batch: Annotated[int, typer.Option(min=1, metavar="N", help="Samples per batch.")] = 64,
    threads: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="CPU threads. Default: all, or 1 for small: networks."
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            metavar="DEVICE", help="Device to compute on, e.g. cpu or cuda. Default: the fastest."
        ),
    ] = None,
) -> None:
    """Predict the class of every file, with confidence and distance from the sources.

    A file that cannot be read gets a row with its error; the other files are
    predicted all the same. The exit code is 1 if no file could be read.
    """
    from afield.compute import default_device, keep_freed_memory
    from afield.deployment.model import load
    from afield.deployment.predictions import Columns, check_output_file, write_predictions

    if out is not None:
        check_output_file(out)
        check_output(out, overwrite=force)
    keep_freed_memory()
    loaded = load(model, device=device or default_device())
    if adapt is not None:
        adapt = own_code.accept({"adapt": adapt})["adapt"]
    loaded, adapt = _adapt(loaded, adapt, options.collect_settings(set_))
    if adapt and abstain is not None:
        raise SpecError(
            "--abstain needs calibrated confidences, which an adapted model does not have; add "
            "--adapt none"
        )
    _set_threads(threads, loaded)
    if adapt and coverage is not None:
        raise SpecError("--coverage needs calibrated confidences; add --adapt none")
    columns = Columns(
        threshold=None if abstain is None else loaded.threshold(abstain),
        classes=loaded.classes if probabilities else (),
        sets=None if coverage is None else (loaded.classes, _thresholds(loaded, coverage)),
    )
    loaded.domain_index(domain)
    if loaded.about.calibration is None:
        reason = "made without an estimate for unseen domains"
        reason = "calibrated without --adapt" if adapt else reason
        console.err.say(f"note: the model was {reason}; its confidences are not calibrated")
    counter = _Counter()
    with console.show_progress():
        answers = loaded.predictions(paths, domain=domain, batch=batch, text=text)
        predictions = counter.count(answers)
        first = next(predictions, None)
        if first is None:
            raise SpecError(
                f"no files to predict; {loaded.about.name} takes {loaded.about.inputs.summary}"
            )
        predictions = chain([first], predictions)
        columns = replace(columns, ids=first.row_id is not None)
        if out is not None:
            write_predictions(predictions, out, columns)
        else:
            _print_predictions(predictions, columns)
    counter.print_summary(out)


def _thresholds(model: "Model", coverage: float) -> tuple[float, float]:
    """The thresholds of prediction sets; notes if no number of domains like this can promise it."""
    sets = model.sets
    thresholds = sets.thresholds(coverage)
    if coverage > sets.promise:
        console.err.say(
            f"note: {len(sets.domains)} held-out domains can promise a new one a coverage of at "
            f"most {100 * sets.promise:.0f} %; the card has the coverage measured on each of them"
        )
    return thresholds


def _adapt(model: "Model", name: str | None, settings: dict[str, Any]) -> "tuple[Model, str]":
    """The model with the adaptation of this name, or the one it was fitted for, and its name."""
    chosen = model.about.adaptation if name is None else name
    if chosen in ("", "none"):
        if settings:
            raise SpecError("--set is for --adapt; add it")
        return model, ""
    if name is None:
        console.err.say(
            f"note: adapting to these files ({chosen}), which should come from one domain; "
            "--adapt none predicts each file by itself"
        )
    return model.adapted(name or "", settings), chosen


def _set_threads(threads: int | None, model: "Model") -> None:
    import torch

    # Threads that share a small network mostly wait for each other, and take cores away from the
    # processes that read files.
    if threads is None and model.about.architecture.backbone.startswith("small:"):
        threads = 1
    if threads is not None:
        torch.set_num_threads(threads)


class _Counter:
    """Counts predictions, and files that could not be read."""

    def __init__(self) -> None:
        self.total = self.broken = 0

    def count(self, predictions: "Iterable[Prediction]") -> "Iterator[Prediction]":
        """Pass predictions on and count them."""
        for prediction in predictions:
            self.total += 1
            self.broken += bool(prediction.error)
            yield prediction

    def print_summary(self, out: Path | None) -> None:
        """Print the counts; exit with code 1 if no file could be read."""
        good = self.total - self.broken
        summary = f"{good} prediction{'s' * (good != 1)}" + (f" in {out}" if out else "")
        if self.broken:
            files = f"{self.broken} file{'s' * (self.broken != 1)}"
            summary += f"; {files} could not be read, see the column 'error'"
        console.err.say(summary)
        if not good:
            raise typer.Exit(1)


def _print_predictions(predictions: "Iterable[Prediction]", columns: "Columns") -> None:
    """Print a table on a terminal, CSV elsewhere."""
    from afield.deployment.predictions import csv_lines

    rows = (columns.row(prediction) for prediction in predictions)
    if not console.out.is_terminal:
        for line in csv_lines(rows, columns):
            sys.stdout.write(line)
        return
    table = Table(box=box.SIMPLE)
    listed = list(rows)
    if len(listed) > MAX_ROWS:
        _print_classes(listed)
        return
    # A terminal has no room for columns without content: no errors, or no known percentiles.
    names = [name for name in columns.names if any(row[name] not in (None, "") for row in listed)]
    for name in names:
        is_text = name in ("file", "id", "class", "set", "set_worst", "error")
        table.add_column(name, justify="left" if is_text else "right", overflow="fold")
    for row in listed:
        style = "bold" if row.get("abstain") or row["error"] else ""
        table.add_row(*(Text(_format_cell(row[name])) for name in names), style=style)
    console.out.print(table)


def _print_classes(rows: list[dict[str, Any]]) -> None:
    """Print how many predictions each class has, in place of so many rows."""
    table = Table(box=box.SIMPLE)
    for name in ("class", "predictions", "mean confidence"):
        table.add_column(name, justify="left" if name == "class" else "right", overflow="fold")
    read = [row for row in rows if not row["error"]]
    counts = Counter(row["class"] for row in read)
    for name, count in counts.most_common(MAX_CLASSES):
        mean = sum(row["confidence"] for row in read if row["class"] == name) / count
        table.add_row(Text(str(name)), f"{count:,}", f"{mean:.3g}")
    console.out.print(table)
    if len(counts) > MAX_CLASSES:
        console.out.say(f"and {len(counts) - MAX_CLASSES} more classes")
    console.out.say("--out answers.csv writes a row for each sample")


def _format_cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(value)
    return f"{value:.3g}" if isinstance(value, float) else str(value)
