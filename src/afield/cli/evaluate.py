"""The commands ``afield evaluate`` and ``estimate``: how well a model does on new samples."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from afield.cli import console, options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from afield.deployment.evaluation import Evaluation
    from afield.deployment.model import Model
    from afield.deployment.new_domain import NewDomain

ResultFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="File to write: .html (a page), .json (all numbers) or .csv (a row per sample).",
    ),
]
Device = Annotated[
    str | None,
    typer.Option(
        metavar="DEVICE", help="Device to compute on, e.g. cpu or cuda. Default: the fastest."
    ),
]
# Classes that the terminal lists; the page has all.
MAX_CLASSES = 12


def evaluate(
    model: options.ModelFolder,
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DATA",
            help="Labelled samples: a folder DATA/<class>/ or DATA/<domain>/<class>/, a table with "
            "a column of labels, an .npz file with X and y, or a CSV file with the columns file "
            "and label.",
        ),
    ],
    *,
    label: Annotated[
        str,
        typer.Option(
            metavar="COLUMN",
            help="Column of a table with the class. Default: one with a usual name.",
            show_default=False,
        ),
    ] = "",
    domain: Annotated[
        str,
        typer.Option(
            metavar="COLUMN",
            help="Column of a table with the domain. Default: one with a usual name, if any.",
            show_default=False,
        ),
    ] = "",
    out: ResultFile = None,
    force: options.Force = False,
    device: Device = None,
) -> None:
    """Evaluate a model on labelled samples, beside what its card promises."""
    from afield.deployment.evaluation import check_result_file, write_result
    from afield.deployment.evaluation import evaluate as evaluate_model
    from afield.deployment.evaluation_page import remarks, render_evaluation

    if out is not None:
        check_result_file(out, overwrite=force)
    loaded = load_model(model, device)
    with console.show_progress():
        result = evaluate_model(loaded, data, label=label, domain=domain)
    console.out.say(result.headline)
    for remark in remarks(result):
        console.out.say(remark)
    _print_scores(result)
    if out is not None:
        page = render_evaluation(result, data.name)
        write_result(out, page=page, values=result.to_dict(), rows=result.rows)
        console.err.say(f"evaluation in {out}")


def estimate(
    model: options.ModelFolder,
    new: Annotated[
        list[Path],
        typer.Argument(
            metavar="NEW...",
            help="Samples without labels: files, or folders of files at any depth.",
        ),
    ],
    *,
    text: Annotated[
        str,
        typer.Option(
            metavar="COLUMN",
            help="Column of a table with the texts. Default: that of the training data.",
            show_default=False,
        ),
    ] = "",
    to_label: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="CSV file to write: samples to label, with an empty column `label` to fill in. "
            "`afield evaluate` takes it.",
        ),
    ] = None,
    labels: Annotated[
        int, typer.Option(min=1, metavar="N", help="How many samples to label.")
    ] = 50,
    how: Annotated[
        str,
        typer.Option(
            metavar="HOW",
            help="How to draw them: random, or narrow (by strata of confidence, which gives a "
            "narrower interval).",
        ),
    ] = "random",
    out: ResultFile = None,
    force: options.Force = False,
    device: Device = None,
) -> None:
    """Estimate the accuracy of a model on samples of a new domain, which have no labels.

    The estimators are calibrated on the held-out domains of `afield fit`,
    and their errors are measured there.
    """
    from afield.compute import default_device, keep_freed_memory
    from afield.deployment.estimate_page import render_estimate
    from afield.deployment.evaluation import check_result_file, write_result
    from afield.deployment.labelling import check_label_file
    from afield.deployment.model import load
    from afield.deployment.new_domain import estimate as estimate_new

    if out is not None:
        check_result_file(out, overwrite=force)
    if to_label is not None:
        check_label_file(to_label, how, overwrite=force)
    keep_freed_memory()
    loaded = load(model, device=device or default_device())
    with console.show_progress():
        result = estimate_new(loaded, new, text=text)
    _print_estimate(result)
    _print_next(result, model, new[0], to_label, labels, how)
    if out is not None:
        page = render_estimate(result, str(new[0]), str(model))
        write_result(out, page=page, values=result.to_dict(), rows=result.rows)
        console.err.say(f"estimate in {out}")


def _print_estimate(result: "NewDomain") -> None:
    from afield.deployment.estimate_page import remarks
    from afield.reporting.sheet import percent

    console.out.say(result.headline)
    for remark in remarks(result):
        console.out.say(remark)
    if not result.refusal:
        rows = [
            (each.name, percent(each.estimate), percent(each.mean_error), percent(each.worst_error))
            for each in result.results
        ]
        print_rows(("estimator", "estimate", "mean error", "worst error"), rows)
    if result.labels:
        widths = [
            (str(each.count), f"±{100 * each.random:.1f}", f"±{100 * each.narrow:.1f}")
            for each in result.labels
        ]
        print_rows(("labels would give", "random (points)", "narrow (points)"), widths)


def _print_next(
    result: "NewDomain", model: Path, data: Path, to_label: Path | None, count: int, how: str
) -> None:
    """Write the samples to label, or print what to do next."""
    from afield.deployment.estimate_page import next_steps
    from afield.deployment.labelling import write_labels
    from afield.studies.commands import write_command

    if to_label is None:
        for step in next_steps(result, str(model), str(data)):
            console.out.say(f"next: {step.text} {step.command}".rstrip())
        return
    sample = result.choose_labels(count, how)
    write_labels(to_label, result.rows["file"].tolist(), sample)
    console.err.say(
        f"{len(sample.rows)} samples to label in {to_label}; fill in the column label, then: "
        f"{write_command('evaluate', str(model), str(to_label))}"
    )


def load_model(folder: Path, device: str | None) -> "Model":
    """The model in a folder; one that was fitted to adapt to its files does so."""
    from afield.compute import default_device, keep_freed_memory
    from afield.deployment.model import load

    keep_freed_memory()
    model = load(folder, device=device or default_device())
    if model.about.adaptation:
        console.err.say(f"note: the model adapts to the samples ({model.about.adaptation})")
        return model.adapted()
    return model


def _print_scores(result: "Evaluation") -> None:
    from afield.reporting.sheet import percent

    if len(result.domains) > 1:
        rows = [
            (each.name, str(each.samples), percent(each.accuracy), each.verdict)
            for each in result.domains
        ]
        print_rows(("domain", "samples", "accuracy", "card" if result.promise else ""), rows)
    worst = sorted(result.classes, key=lambda each: each.recall)[:MAX_CLASSES]
    rows = [
        (each.name, str(each.samples), percent(each.recall), percent(each.precision))
        for each in worst
    ]
    print_rows(("class", "samples", "recall", "precision"), rows)


def print_rows(header: "Sequence[str]", rows: "Sequence[Sequence[str]]") -> None:
    """Print a small table; the first column is text, the others are numbers."""
    table = Table(box=box.SIMPLE)
    for number, name in enumerate(header):
        table.add_column(name, justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console.out.print(table)
