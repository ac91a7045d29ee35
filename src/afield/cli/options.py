"""Options that several commands share, and how their values are read."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from afield import own_code, registry
from afield.data.sources.listing import check_dataset_exists
from afield.deployment.model_files import check_model_folder
from afield.errors import DataError, SpecError, UnknownNameError
from afield.studies.benchmark import OPTIONS
from afield.training.metrics import METRICS

__all__ = ["DATA", "NETWORK", "OUTPUT", "RUNNING", "TRAINING", "Average", "Backbone", "ClassNames"]
__all__ += ["DatasetArgument", "Device", "DomainColumn", "DomainsPerStep", "Finetune", "Format"]
__all__ += ["GroupOption", "LabelColumn", "MetricOption", "ModelFolder", "Quiet", "SetOption"]
__all__ += ["ShownMetric", "SkipBroken", "Start", "Steps", "StoreArgument", "StoreOption"]
__all__ += ["StoresArgument", "Templates", "Tensorboard", "TextColumn", "Threads", "Weights"]
__all__ += ["Workers", "check_format", "collect_settings", "parse_assignments", "split_names"]


def check_dataset(name: str | None) -> str | None:
    """Report a mistyped path before anything large is imported; load a dataset in Python."""
    if name is None:
        return None
    if own_code.is_code("datasets", name):
        return own_code.load("datasets", name)
    check_dataset_exists(name)
    return name


def check_model(folder: Path) -> Path:
    """The same for a model folder; models of the hub are left to the command."""
    if not str(folder).startswith("hf:"):
        check_model_folder(folder.expanduser())
    return folder


def check_store(name: str) -> str:
    """The same for a store; addresses are left to the command."""
    if "://" not in name and not Path(name).expanduser().exists():
        raise DataError(f"{name}: no records there; run `afield bench --store {name}`")
    return name


def check_stores(names: list[str] | None) -> list[str] | None:
    """The same for several stores."""
    for name in names or ():
        check_store(name)
    return names


FORMATS = ("console", "md", "latex", "csv")
# Headings under which the help of a command lists its options.
DATA, NETWORK, TRAINING = "Data", "Network", "Training"
RUNNING, OUTPUT, SCORES, EVALUATION = "Running", "Output", "Which scores", "Splits"

DatasetArgument = Annotated[
    str,
    typer.Argument(metavar="DATASET", help=OPTIONS["dataset"].help, callback=check_dataset),
]
LabelColumn = Annotated[
    str, typer.Option(metavar="COLUMN", help=OPTIONS["label"].help, rich_help_panel=DATA)
]
DomainColumn = Annotated[
    str, typer.Option(metavar="COLUMN", help=OPTIONS["domain"].help, rich_help_panel=DATA)
]
TextColumn = Annotated[
    str, typer.Option(metavar="COLUMN", help=OPTIONS["text"].help, rich_help_panel=DATA)
]
Average = Annotated[
    str, typer.Option(metavar="NAME", help=OPTIONS["average"].help, rich_help_panel=TRAINING)
]
Start = Annotated[
    str, typer.Option(metavar="NAME", help=OPTIONS["start"].help, rich_help_panel=TRAINING)
]
Classes = Annotated[
    str | None,
    typer.Option(metavar="sources|all", help=OPTIONS["classes"].help, rich_help_panel=DATA),
]
Backbone = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Network, e.g. small:cnn, timm:resnet50, torchvision:resnet18, "
        "clip:ViT-B-32/openai, or hf:FOLDER for texts. Default: the dataset's.",
        rich_help_panel=NETWORK,
    ),
]
Weights = Annotated[
    str | None,
    typer.Option(
        metavar="WEIGHTS",
        help="Initial weights of the network: 'hub' (pretrained weights from the model hub), "
        "'none' (random), or a file. Default: hub if the hub has weights for the network.",
        rich_help_panel=NETWORK,
    ),
]
Finetune = Annotated[
    bool | None,
    typer.Option(
        "--finetune/--no-finetune", help=OPTIONS["finetune"].help, rich_help_panel=NETWORK
    ),
]
SkipBroken = Annotated[
    bool,
    typer.Option(
        "--skip-broken",
        help="Skip files that cannot be read. Default: stop with an error.",
        rich_help_panel=DATA,
    ),
]
DomainsPerStep = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Number of source domains in the batch of one step. Default: all.",
        rich_help_panel=TRAINING,
    ),
]
Steps = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Number of training steps. Default: the dataset's.",
        rich_help_panel=TRAINING,
    ),
]
MetricOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help=f"Metric that selects models, and that the table shows: {', '.join(METRICS)}. "
        "Default: accuracy. `afield table --metric` shows any of them without new runs.",
        rich_help_panel=SCORES,
    ),
]
GroupOption = Annotated[
    str | None,
    typer.Option(
        metavar="GROUP",
        help="Also show the accuracy on groups of samples finer than a domain: a column of the "
        "data, such as slide, or a CSV file with the columns path and group.",
        rich_help_panel=SCORES,
    ),
]
ClassNames = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="For CLIP: CSV file with the columns class and name, the words for each class. "
        "Default: the dataset's.",
        rich_help_panel=NETWORK,
    ),
]
Templates = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="For CLIP: text file with one sentence per line, such as 'a photo of a {}.'. "
        "Default: the dataset's.",
        rich_help_panel=NETWORK,
    ),
]
ShownMetric = Annotated[
    str,
    typer.Option(metavar="NAME", help=f"Metric to show: {', '.join(METRICS)}."),
]
Report = Annotated[
    str | None,
    typer.Option(
        metavar="SPLIT",
        help="Report on the 'test' split of a target, or on the 'whole' target, which excludes "
        "the rule 'target'. Default: test.",
        rich_help_panel=EVALUATION,
    ),
]
Split = Annotated[
    str | None,
    typer.Option(
        metavar="HOW",
        help="Split domains by the 'lists' of the dataset, if it has any, or at 'random'. "
        "Default: lists.",
        rich_help_panel=EVALUATION,
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Change another setting; repeat the option for several.\n\n"
        "Training: lr, batch (samples per domain, or all), batch_total (samples of all domains "
        "together), epochs (instead of steps), weight_decay, optimizer "
        "(sgd:momentum=0.9), lr_schedule (constant, cosine, exponential, inverse or step, with "
        "options: cosine:warmup=500), clip_norm, every (steps between evaluations), "
        "freeze_bn (true or false), freeze_blocks (blocks at the beginning "
        "of the network that are not trained), precision (fp32, bf16, fp16, auto), "
        "inexact (true: the fastest kernels of a GPU, which do not repeat bit for bit), "
        "compile (true: torch.compile compiles the network).\n\n"
        "Data: size (pixels), augment (none, light, full), balance (classes; true or false), limit "
        "(samples per class and domain), split (lists, random), report (test, whole).\n\n"
        "Texts: tokens (at which texts are cut), pooling (mean, first).\n\n"
        "Selection: metric (macro_f1), group (slide).\n\n"
        "CLIP: class_names, templates (files).\n\n"
        "A method's own settings start with its name: vrex.penalty=1.",
        rich_help_panel=TRAINING,
    ),
]
Threads = Annotated[
    int,
    typer.Option(min=1, metavar="N", help=OPTIONS["threads"].help, rich_help_panel=RUNNING),
]
Device = Annotated[
    str | None,
    typer.Option(metavar="DEVICE", help=OPTIONS["device"].help, rich_help_panel=RUNNING),
]
Workers = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help=OPTIONS["workers"].help, rich_help_panel=RUNNING),
]
StoreOption = Annotated[
    str, typer.Option(metavar="STORE", help=OPTIONS["store"].help, rich_help_panel=OUTPUT)
]
StoresArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[STORE]...",
        help="Folders or addresses of the records that `afield bench` has written. Several stores "
        "give a table with a mean over datasets as well.",
        show_default="runs",
        callback=check_stores,
    ),
]
StoreArgument = Annotated[
    str,
    typer.Argument(
        metavar="STORE",
        help="Folder or address of the records that `afield bench` has written.",
        callback=check_store,
    ),
]
Format = Annotated[
    str,
    typer.Option(
        "--format",
        metavar="FORMAT",
        help=f"Format of the table: {', '.join(FORMATS)}.",
        rich_help_panel=OUTPUT,
    ),
]
Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet",
        "-q",
        help="Print only the table, and errors.",
        rich_help_panel=OUTPUT,
    ),
]
Tensorboard = Annotated[
    bool,
    typer.Option(
        "--tensorboard",
        help="Also write training curves for TensorBoard, to STORE/tensorboard.",
        rich_help_panel=OUTPUT,
    ),
]
ModelFolder = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL",
        help="Model folder that `afield fit` has written.",
        callback=check_model,
    ),
]


def split_names(names: str) -> list[str]:
    """Names from a list separated by commas.

    >>> split_names("erm, vrex,")
    ['erm', 'vrex']
    """
    return [name.strip() for name in names.split(",") if name.strip()]


def parse_assignments(pairs: Sequence[str]) -> dict[str, str]:
    """Settings from a list of ``name=value``.

    >>> parse_assignments(["tau=1.5", "keep = full"])
    {'tau': '1.5', 'keep': 'full'}
    """
    settings = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise SpecError(f"--set {pair}: no value; write NAME=VALUE, e.g. lr=0.001")
        settings[name.strip()] = value.strip()
    return settings


def collect_settings(pairs: list[str] | None, **options: Any) -> dict[str, Any]:
    """Settings from ``--set`` and from the options that were given; ``--set`` wins."""
    given = {name: value for name, value in options.items() if value is not None}
    return {**given, **parse_assignments(pairs or [])}


def check_format(name: str) -> None:
    """Raise an error if tables cannot be written in this format."""
    if name not in FORMATS:
        raise UnknownNameError(f"no table format {name!r}; {registry.hint(name, FORMATS)}")
