"""The commands ``afield fit``, ``export`` and ``push``: make a model, convert it, upload it."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from afield.cli import console, options
from afield.cli.evaluate import print_rows
from afield.errors import SpecError

if TYPE_CHECKING:
    from afield.deployment.model import Model


ESTIMATE = "Estimate for unseen domains"


@options.with_options(
    *("label", "domain", "text", "column_types", "drop"),
    *("average", "ensemble", "start", "classes", "steps", "backbone"),
    *("weights", "tune"),
    *("finetune", "set_", "skip_broken", "workers", "threads", "device", "store"),
    device=None,
)
def fit(
    dataset: options.DatasetArgument,
    method: Annotated[
        str | None,
        typer.Argument(
            metavar="METHOD",
            help="Name of a method (see `afield list methods`), or 'best': the method or merge, "
            "settings and adaptation with the best result among the benchmarks in the store.",
        ),
    ] = None,
    *,
    method_: Annotated[
        str | None,
        typer.Option(
            "--method", metavar="METHOD", help="Same as the argument METHOD.", show_default=False
        ),
    ] = None,
    adapt: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Test-time adaptation that the model is meant for: the estimate is that of "
            "adapted models, and `afield predict` adapts to the files it is given. With 'best', "
            "'none' leaves adapted models out. See `afield list adaptations`.",
            rich_help_panel=options.TRAINING,
        ),
    ] = "",
    no_estimate: Annotated[
        bool,
        typer.Option(
            "--no-estimate",
            help="Skip the estimate. The accuracy on unseen domains is then unknown, and "
            "confidences are not calibrated.",
            rich_help_panel=ESTIMATE,
        ),
    ] = False,
    trials: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="N",
            help="How many times to leave each domain out, with different splits and seeds.",
            rich_help_panel=ESTIMATE,
        ),
    ] = 1,
    hold_out: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=0.9,
            metavar="SHARE",
            help="Leave out this share of the domains at once, e.g. 0.25. Default: one domain "
            "after the other, or 0.25 if there are more than twelve.",
            show_default=False,
            rich_help_panel=ESTIMATE,
        ),
    ] = 0.0,
    like: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Fit by the recipe of this model, instead of METHOD, with one more domain; needs "
            "--add. Both are compared on all domains, and the folder stays as it is.",
            show_default=False,
            rich_help_panel=options.TRAINING,
        ),
    ] = None,
    add: Annotated[
        str,
        typer.Option(
            metavar="NAME=PATH",
            help="The domain to add, with --like: its name and its labelled samples "
            "(PATH/<class>/, a table, an .npz file, or a list with the columns file and label).",
            show_default=False,
            rich_help_panel=options.TRAINING,
        ),
    ] = "",
    no_held_out: Annotated[
        bool,
        typer.Option(
            "--no-held-out",
            help="Do not keep the outputs for held-out domains in the folder, which `afield "
            "estimate` needs: logits, labels and distances, without names or inputs.",
            rich_help_panel=ESTIMATE,
        ),
    ] = False,
    out: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER", help="Model folder to write.", rich_help_panel=options.OUTPUT
        ),
    ],
    license_: Annotated[
        str,
        typer.Option(
            "--license",
            metavar="NAME",
            help="License of the model, for its model card.",
            show_default=False,
            rich_help_panel=options.OUTPUT,
        ),
    ] = "",
    adapter_only: Annotated[
        bool,
        typer.Option(
            "--adapter-only",
            help="With --tune lora: write the factors and all else that was trained, in the format "
            "of PEFT, instead of all weights; the network's own weights must be at hand where the "
            "model is used.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Overwrite an existing model folder.", rich_help_panel=options.OUTPUT
        ),
    ] = False,
    **values: Any,
) -> None:
    """Train on all domains and write a model folder, ready for `afield predict`.

    First, each domain is left out once. This estimates the accuracy on an
    unseen domain and calibrates confidences for it. Runs that the store
    already holds are not repeated.
    """
    from afield.compute import keep_freed_memory
    from afield.deployment.fitting import fit as fit_model
    from afield.runs.pool import make_pool

    if method and method_ and method != method_:
        raise SpecError(f"two methods given, {method} and --method {method_}; give only one")
    chosen = method or method_
    if like is not None or add:
        if chosen is not None or like is None or not add or adapter_only:
            raise SpecError(
                "give --like FOLDER and --add NAME=PATH together, without METHOD and --adapter-only"
            )
        keep = {"held_out": not no_held_out, "license": license_, "overwrite": force}
        _refit(dataset, like, add, out, {**values}, keep)
        return
    if chosen is None:
        raise SpecError(
            "no method given; see `afield list methods`, or give 'best' after `afield bench`"
        )
    words = options.read_options({"dataset": dataset, "method": chosen, **values})
    pool = make_pool(threads=words["threads"], workers=words.pop("workers"), device=words["device"])
    keep_freed_memory()
    with console.show_progress():
        model = fit_model(
            options.name_dataset(words.pop("dataset"), words),
            words.pop("method"),
            out,
            adapt=adapt,
            estimate=not no_estimate,
            trials=trials,
            hold_out=hold_out,
            held_out=not no_held_out,
            license=license_,
            adapter_only=adapter_only,
            overwrite=force,
            pool=pool,
            **words,
        )
    _print_model(model, out)


def _refit(
    dataset: str, like: Path, add: str, out: Path, values: dict[str, Any], keep: dict[str, Any]
) -> None:
    """Fit with one more domain by the recipe of another model, and print how both compare."""
    from afield.compute import keep_freed_memory
    from afield.deployment.refitting import refit
    from afield.runs.pool import make_pool

    name, equals, path = add.partition("=")
    if not equals or not name or not path:
        raise SpecError(f"--add {add}: write NAME=PATH")
    words = options.read_options({"dataset": dataset, **values})
    pool = make_pool(threads=words["threads"], workers=words.pop("workers"), device=words["device"])
    given = options.name_dataset(words.pop("dataset"), words)
    kept = {each: words.pop(each) for each in ("store", "settings", "threads", "device")}
    if other := [each for each, value in words.items() if value not in (None, "", "last", False)]:
        raise SpecError(f"--{other[0].replace('_', '-')} is taken from --like; remove it")
    keep_freed_memory()
    with console.show_progress():
        model, comparison = refit(given, like, (name, path), out, pool=pool, **kept, **keep)
    _print_model(model, out)
    rows = [
        (each, f"{100 * before:.1f}", f"{100 * after:.1f}")
        for each, (before, after) in comparison.domains.items()
    ]
    print_rows(("left out", f"{like.name} (%)", f"with {name} (%)"), rows)
    console.out.say(comparison.summary)


def _print_model(model: "Model", out: Path) -> None:
    """Estimate and calibration of a model, and where it is."""
    from afield.deployment.model_card import format_range
    from afield.runs.row import Row

    about = model.about
    if (estimate := about.estimate) is None:
        console.out.print("accuracy on unseen domains: not estimated")
    else:
        stderr = f" ± {100 * estimate.stderr:.1f}" if estimate.stderr is not None else ""
        trials = f"{estimate.trials} trial{'s' * (estimate.trials > 1)}"
        ends = "unknown from one domain"
        if estimate.interval is not None:
            ends = f"{format_range(estimate.interval)} (90 % prediction interval)"
        console.out.say(f"accuracy on one more unseen domain: {ends}")
        console.out.say(
            f"mean over unseen domains: {100 * estimate.accuracy:.1f} %{stderr}, worst "
            f"{100 * estimate.worst:.1f} % ({len(estimate.domains)} domains left out, {trials})"
        )
        if (selection := estimate.selection) is not None and about.run is not None:
            cost = round(100 * selection.cost, 1) + 0.0
            run = replace(about.run, adaptation=about.adaptation)
            row = Row.of(run)
            name = row.without(row.settings.keys() - run.given.keys()).label
            console.out.say(
                f"{name}: the best of {estimate.recipes} candidates, with "
                f"{100 * selection.accuracy:.1f} %; choosing cost {cost:.1f} points: the estimate "
                "chooses again without each domain"
            )
    if (calibration := about.calibration) is not None:
        console.out.say(
            f"confidence: temperature {calibration.temperature:.2f}; calibration error on unseen "
            f"domains {100 * calibration.error_before:.1f} % before, "
            f"{100 * calibration.error_after:.1f} % after"
        )
    if about.adaptation:
        console.out.say(
            f"`afield predict` adapts this model to the files it is given ({about.adaptation}); "
            "give it many files of one domain, or --adapt none"
        )
    console.out.say(f"model in {out}")


def push(
    model: options.ModelFolder,
    repository: Annotated[
        str, typer.Argument(metavar="USER/NAME", help="Repository on the Hugging Face hub.")
    ],
    private: Annotated[
        bool, typer.Option("--private", help="Make a new repository private.")
    ] = False,
    with_held_out: Annotated[
        bool,
        typer.Option(
            "--with-held-out",
            help="Upload held_out.safetensors too: logits, labels and distances of held-out "
            "samples, which `afield estimate` needs.",
        ),
    ] = False,
) -> None:
    """Upload a model folder to the Hugging Face hub.

    `afield.load("hf:USER/NAME")` loads it. Log in first, with `hf auth login`.
    """
    from afield.deployment.hub import push as push_model

    address = push_model(model, repository, private=private, with_held_out=with_held_out)
    console.err.say(f"model at {address}")


def export(
    model: options.ModelFolder,
    *,
    to: Annotated[
        str,
        typer.Option(metavar="FORMAT", help="Format: onnx, or torch (a torch.export program)."),
    ] = "onnx",
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File to write. Default: MODEL.onnx or MODEL.pt2."),
    ] = None,
    force: options.Force = False,
) -> None:
    """Convert a model for other programs, for batches of any size.

    The file takes decoded samples x (float32, unscaled, at the network's
    input size), or input_ids and attention_mask of texts. It returns logits
    and calibrated probabilities: scaling, temperature and softmax are
    included. It is written only if its outputs equal those of the model.
    Beside an ONNX file for images, predict_onnx.py prepares images as
    `afield predict` does, without afield.
    """
    from afield.deployment.exporting import CHECKED_BATCH_SIZES, TOLERANCE
    from afield.deployment.exporting import export as convert
    from afield.deployment.model_folder import read_description

    with console.show_progress():
        path = convert(model, to, out, overwrite=force)  # type: ignore[arg-type]
    inputs = read_description(model.expanduser()).inputs
    takes = inputs.modality.export_form(inputs).summary
    console.out.say(f"{path}: from {takes} to logits and probabilities")
    sizes = ", ".join(map(str, CHECKED_BATCH_SIZES))
    console.out.say(
        f"outputs checked for batches of {sizes} (equal within {TOLERANCE:g}); "
        f"{inputs.modality.preparation} before calling it"
    )
    if to == "onnx" and inputs.modality.resizable:
        console.out.say(
            f"{path.parent / 'predict_onnx.py'} shows how, with Pillow, numpy and onnxruntime: "
            f"python predict_onnx.py {path.name} new/*.jpg"
        )
    elif inputs.modality.resizable:
        console.out.say(f"before it: {inputs.modality.export_form(inputs).steps}")
