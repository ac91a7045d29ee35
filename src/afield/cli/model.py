"""The commands ``afield fit``, ``predict`` and ``export``: a model in use, and what it answers."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from afield.cli import console
from afield.cli.options import (
    Average,
    Backbone,
    ModelFolder,
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
    from afield.deployment.model import Model

__all__ = ["export", "fit"]


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
    from afield.experiments.pools import Local, default_workers

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
    more = f", nor are pictures resized to {inputs.size} px" if inputs.modality.resizable else ""
    console.out.print(told + more, soft_wrap=True)
