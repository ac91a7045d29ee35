"""Options that several commands share, how their values are read, and the help of commands."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from afield import own_code, registry
from afield.data.listing import check_dataset_exists
from afield.deployment.model_files import check_model_folder
from afield.errors import DataError, SpecError, UnknownNameError
from afield.studies.benchmark import OPTIONS, Benchmark, Option
from afield.training.metrics import METRICS

HELP_ALL = "--help-all"
# What `--help` shows of commands with many options; `--help-all` shows the others, too.
USUAL_OPTIONS = {
    "bench": (
        *("methods", "merges", "trials", "targets", "label", "domain", "backbone", "tune", "set_"),
        *("workers", "store", "dry_run"),
    ),
    "fit": (
        *("label", "domain", "backbone", "tune", "steps", "set_", "adapt", "no_estimate"),
        *("trials", "workers", "store", "out", "force"),
    ),
    "train": (
        *("target", "label", "domain", "backbone", "tune", "steps", "set_", "trial", "draw"),
        *("device", "store"),
    ),
}


class Command(TyperCommand):
    """A command whose help shows placeholders such as NAMES, but no types such as <str>.

    The help of a command in `USUAL_OPTIONS` is short, without headings.
    """

    def get_params(self, ctx: Any) -> list[Any]:
        """All parameters, including --help, without a type to display."""
        return [_without_type(param) for param in super().get_params(ctx)]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read --help-all as --help that shows all options."""
        if self.name in USUAL_OPTIONS and HELP_ALL in args:
            ctx.meta[HELP_ALL], args = True, ["--help"]
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the usual options only, unless --help-all is given."""
        usual = USUAL_OPTIONS.get(self.name or "")
        if usual is None or HELP_ALL in ctx.meta:
            super().format_help(ctx, formatter)
            return
        options = [each for each in self.params if isinstance(each, TyperOption)]
        before = [(each.hidden, each.rich_help_panel) for each in options]
        for each in options:
            each.hidden, each.rich_help_panel = each.name not in usual, None
        self.epilog = f"{ctx.command_path} {HELP_ALL} shows all {len(options)} options."
        try:
            super().format_help(ctx, formatter)
        finally:
            for each, (hidden, panel) in zip(options, before, strict=True):
                each.hidden, each.rich_help_panel = hidden, panel


class Group(TyperGroup):
    """The same for a command that has commands."""

    def get_params(self, ctx: Any) -> list[Any]:
        """All parameters, including --help, without a type to display."""
        return [_without_type(param) for param in super().get_params(ctx)]


def _without_type(param: Any) -> Any:
    def leave_empty(*_: Any, **__: Any) -> None:
        """Show no text."""

    # Options with a placeholder show that. Older versions of typer do not read the attribute.
    if param.param_type_name == "argument" or param.metavar is None:
        param.display_type_rich = leave_empty
    # The same holds for this one, which returns a range such as 1<=x<=10000.
    param._get_number_range_help_str = leave_empty
    return param


Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def check_dataset(name: str | None) -> str | None:
    """Report a mistyped path before anything large is imported; load a dataset in Python."""
    if name is None:
        return None
    if own_code.is_code("datasets", name):
        return own_code.load("datasets", name)
    check_dataset_exists(name)
    return name


def check_dataset_or_file(name: str) -> str | None:
    """The same for a dataset, or a TOML file that describes a benchmark."""
    return name if is_benchmark_file(name) else check_dataset(name)


def is_benchmark_file(name: str) -> bool:
    """Whether a name is a TOML file, and not a dataset."""
    return name.endswith(".toml") and not Path(name).is_dir()


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
DATA, NETWORK, TRAINING, MERGING = "Data", "Network", "Training", "Merging"
RUNNING, OUTPUT, SCORES, EVALUATION = "Running", "Output", "Which scores", "Splits"
NAMED_DOMAINS, MANY_DOMAINS = "Which domains", "Datasets of many domains"
# The options under each heading; the others are under no heading of their own.
HEADINGS = {
    NAMED_DOMAINS: ("targets", "sources", "validate_on", "single_source"),
    MANY_DOMAINS: ("hold_out", "validate", "train_on"),
    MERGING: ("merges", "expert_method", "base_steps", "expert_draws"),
    DATA: ("classes", "label", "domain", "text", "column_types", "drop", "skip_broken"),
    NETWORK: ("tune", "finetune", "backbone", "weights", "class_names", "templates"),
    TRAINING: ("start", "average", "ensemble", "adapt", "domains_per_step", "steps"),
    SCORES: ("metric", "group"),
    EVALUATION: ("report", "split"),
    RUNNING: ("on", "workers", "device", "threads", "cpus", "gpus", "retries"),
    OUTPUT: ("store",),
}

DatasetArgument = Annotated[
    str, typer.Argument(metavar="DATASET", help=OPTIONS["dataset"].help, callback=check_dataset)
]
DatasetOrFile = Annotated[
    str,
    typer.Argument(
        metavar="DATASET",
        help=f"{OPTIONS['dataset'].help} A file FILE.toml describes a whole benchmark or a recipe; "
        "options given here replace those of the file. See docs/sweeps.md.",
        callback=check_dataset_or_file,
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Change any setting of training, the data or a method: lr=1e-4, vrex.penalty=1. "
        "`afield list settings` describes them. Repeat the option for several.",
        rich_help_panel=TRAINING,
    ),
]
ShownMetric = Annotated[
    str, typer.Option(metavar="NAME", help=f"Metric to show: {', '.join(METRICS)}.")
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
    typer.Option("--quiet", "-q", help="Print only the table, and errors.", rich_help_panel=OUTPUT),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Only show what it would cost: runs, time, disk, and data that are missing.",
        rich_help_panel=RUNNING,
    ),
]
PrintScript = Annotated[
    bool,
    typer.Option(
        "--print",
        help="With --on slurm: write the plan and print the script of the job, but submit nothing.",
        rich_help_panel=RUNNING,
    ),
]
Force = Annotated[
    bool,
    typer.Option("--force", help="Overwrite an existing file.", rich_help_panel=OUTPUT),
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


@dataclass(frozen=True)
class Settings:
    """The settings with an option of their own; the others are given after ``--set``."""

    backbone: Annotated[
        str | None,
        Option(
            "Network: fast, strong or large (see `afield list networks`), or a name such as "
            "small:cnn, timm:resnet50, torchvision:resnet18, clip:ViT-B-32/openai, or hf:FOLDER "
            "for texts. A benchmark compares several, separated by commas. Default: the dataset's.",
            metavar="NAME",
        ),
    ] = None
    weights: Annotated[
        str | None,
        Option(
            "Initial weights of the network: 'hub' (pretrained weights from the model hub), "
            "'none' (random), or a file. Default: hub if the hub has weights for the network.",
            metavar="WEIGHTS",
        ),
    ] = None
    tune: Annotated[
        str | None,
        Option(
            "What is trained: 'frozen' (a small network on features that the network computes "
            "once), 'head' (its last layer), 'norms' or 'attention' (these layers and the last "
            "one), 'lora:rank=4,alpha=8' (factors of low rank beside the weights, and the last "
            "layer), 'body' (all but its last layer), 'after:N' (all but its first N blocks) or "
            "'full'. Default: see --finetune.",
            metavar="PART",
        ),
    ] = None
    domains_per_step: Annotated[
        int | None,
        Option("Number of source domains in the batch of one step. Default: all.", min=1),
    ] = None
    steps: Annotated[int | None, Option("Number of training steps. Default: the dataset's.")] = None
    report: Annotated[
        str | None,
        Option(
            "Report on the 'test' split of a target, or on the 'whole' target, which excludes "
            "the rule 'target'. Default: test.",
            metavar="SPLIT",
        ),
    ] = None
    split: Annotated[
        str | None,
        Option(
            "Split domains by the 'lists' of the dataset, if it has any, or at 'random'. "
            "Default: lists.",
            metavar="HOW",
        ),
    ] = None
    skip_broken: Annotated[
        bool, Option("Skip files that cannot be read. Default: stop with an error.")
    ] = False
    metric: Annotated[
        str | None,
        Option(
            f"Metric that selects models, and that the table shows: {', '.join(METRICS)}. "
            "Default: accuracy. `afield table --metric` shows any of them without new runs.",
            metavar="NAME",
        ),
    ] = None
    group: Annotated[
        str | None,
        Option(
            "Also show the accuracy on groups of samples finer than a domain: a column of the "
            "data, such as slide, or a CSV file with the columns path and group.",
            metavar="GROUP",
        ),
    ] = None
    class_names: Annotated[
        str | None,
        Option(
            "For CLIP: CSV file with the columns class and name, the words for each class. "
            "Default: the dataset's.",
            metavar="FILE",
        ),
    ] = None
    templates: Annotated[
        str | None,
        Option(
            "For CLIP: text file with one sentence per line, such as 'a photo of a {}.'. "
            "Default: the dataset's.",
            metavar="FILE",
        ),
    ] = None


SETTINGS = tuple(each.name for each in fields(Settings))
# Type, description and default of every option that is derived.
DERIVED: dict[str, tuple[Any, Option, Any]] = {
    each.name: (*get_args(each.type), each.default)
    for kind in (Benchmark, Settings)
    for each in fields(kind)
}


def with_options(
    *names: str, optional: bool = False, **defaults: Any
) -> Callable[[Decorated], Decorated]:
    """Give a command these options, between its arguments and its own options.

    A name is a field of `Benchmark` or a setting; ``settings`` stands for all settings. `defaults`
    replace the default values. An `optional` option has no default: it is None unless it is given.
    """
    chosen = [
        each for name in names for each in ((*SETTINGS, "set_") if name == "settings" else (name,))
    ]
    if optional:
        defaults = dict.fromkeys(chosen)
    return with_parameters([_parameter(name, defaults) for name in chosen])


def with_parameters(added: Sequence[inspect.Parameter]) -> Callable[[Decorated], Decorated]:
    """Give a command keyword parameters, between its arguments and its own options."""

    def decorate(command: Decorated) -> Decorated:
        declared = inspect.signature(command, eval_str=True).parameters.values()
        arguments = [p for p in declared if p.kind is p.POSITIONAL_OR_KEYWORD]
        options = [p for p in declared if p.kind is p.KEYWORD_ONLY]
        signature = inspect.Signature([*arguments, *added, *options])
        command.__signature__ = signature  # type: ignore[attr-defined]
        return command

    return decorate


def _parameter(name: str, defaults: Mapping[str, Any]) -> inspect.Parameter:
    """The parameter of a command for one option."""
    kind, option, default = DERIVED.get(name, (list[str], Option(""), None))
    if isinstance(default, tuple):
        default = ",".join(default) or None
    default = defaults.get(name, default)
    by_hand: dict[str, Any] = {"dataset": DatasetOrFile, "set_": SetOption}
    annotation = by_hand.get(name) or _annotation(name, kind, option, default)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def _annotation(name: str, kind: Any, option: Option, default: Any) -> Any:
    flag = f"--{name.replace('_', '-')}"
    metavar: str | None = "SHARE" if option.max is not None and option.max <= 1 else "N"
    if kind in (bool, bool | None):
        flag, metavar = (flag if default is False else f"{flag}/--no-{name}"), None
    elif get_origin(kind) is tuple:
        kind, metavar = str, "NAMES"
    shown: Any = typer.Option(
        flag,
        help=option.help,
        metavar=option.metavar or metavar,
        min=option.min,
        max=option.max,
        rich_help_panel=next((each for each, names in HEADINGS.items() if name in names), None),
    )
    return Annotated[kind | None if default is None else kind, shown]


def read_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as functions take them: your own code is loaded, and settings are one mapping.

    Settings are in the order in which the command names them; recorded commands repeat it.
    """
    words = own_code.accept(options)
    given = {name: words.pop(name) for name in options if name in SETTINGS}
    given["skip_broken"] = given.get("skip_broken") or None
    words["settings"] = collect_settings(words.pop("set_", None), **given)
    return words


def name_dataset(dataset: str, options: dict[str, Any]) -> str:
    """The dataset with the columns of a table that the options name; they are taken out."""
    from afield.data.frames import name_columns

    kinds = {"label": "label", "domain": "domain", "text": "text"}
    kinds |= {"column_types": "types", "drop": "drop"}
    columns = {kind: options.pop(name) for name, kind in kinds.items() if name in options}
    return name_columns(dataset, **columns)


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
