"""Options that several commands have."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from afield import registry
from afield.errors import SpecError, UnknownNameError

__all__ = [
    "Average",
    "Backbone",
    "DomainsPerStep",
    "Format",
    "Methods",
    "ModelFolder",
    "Quiet",
    "Rules",
    "SetOption",
    "SkipBroken",
    "Steps",
    "StoreOption",
    "Tensorboard",
    "Threads",
    "Weights",
    "check_format",
    "collect_settings",
    "parse_assignments",
    "split_names",
]

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
StoreOption = Annotated[
    str, typer.Option(help="Folder of the records, or an address such as s3://bucket/runs.")
]
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
SetOption = Annotated[
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
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Say nothing but the result and what went wrong.")
]
Tensorboard = Annotated[
    bool,
    typer.Option("--tensorboard", help="Write curves for TensorBoard into STORE/tensorboard."),
]
ModelFolder = Annotated[
    Path, typer.Argument(metavar="MODEL", help="Folder that `afield fit` has written.")
]


def split_names(names: str) -> list[str]:
    """Names that were separated by commas."""
    return [name.strip() for name in names.split(",") if name.strip()]


def collect_settings(pairs: list[str] | None, **named: Any) -> dict[str, Any]:
    """Settings from ``name=value`` and from options that were given."""
    found = {name: value for name, value in named.items() if value is not None}
    return {**found, **parse_assignments(pairs or [])}


def check_format(name: str) -> None:
    """Refuse a format that no table has."""
    known = ["console", "md", "latex", "csv"]
    if name not in known:
        raise UnknownNameError(f"no format {name!r}; {registry.hint(name, known)}")


def parse_assignments(pairs: Sequence[str]) -> dict[str, str]:
    """Settings that were written as ``name=value``.

    >>> parse_assignments(["tau=1.5", "keep = full"])
    {'tau': '1.5', 'keep': 'full'}
    """
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise SpecError(f"--set {pair}: write name=value")
        found[name.strip()] = value.strip()
    return found
