"""The command ``afield merge``: merge fine-tuned models into one that generalizes."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from afield import registry
from afield.cli import console, options

if TYPE_CHECKING:
    from afield.merging.job import MergeJob


class MergeCommand(options.Command):
    """A command whose help ends with the list of merges."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the usual help, then one line per merge, read from its file without torch."""
        super().format_help(ctx, formatter)
        table = Table(title="merges", title_justify="left", show_header=False, box=None)
        for name in registry.names("merges"):
            table.add_row(Text(name, style="bold"), Text(registry.summary("merges", name)))
        console.out.print(table)


def merge(
    how: Annotated[
        str,
        typer.Argument(
            metavar="MERGE",
            help="Name of a merge, from the list below; see `afield explain MERGE`.",
        ),
    ],
    base: Annotated[
        Path,
        typer.Argument(
            metavar="BASE",
            help="Model from which all experts were fine-tuned: a safetensors file, a Hugging Face "
            "folder, a state dict saved by torch, or a model folder of `afield fit`.",
        ),
    ],
    experts: Annotated[
        list[Path],
        typer.Argument(metavar="EXPERT", help="Fine-tuned models, in the same formats."),
    ],
    *,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Change a setting of the merge, e.g. tau=1.96; repeat the option for several.",
        ),
    ] = None,
    scale: Annotated[
        float | None,
        typer.Option(
            metavar="FACTOR",
            help="Multiply the merged change by this factor before adding it to the base. Default: "
            "the usual scale of the merge, e.g. 0.3 for task_arithmetic; 1 for most.",
        ),
    ] = None,
    statistics: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="For merges that need statistics of the experts: one file per expert, in their "
            "order; repeat the option.",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Parallel processes, for merges of matrices and tensors. The result does not "
            "depend on it. Default: the number of cores, or 1 for a small model.",
        ),
    ] = None,
    device: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Where to compute, e.g. cuda. The last digits of the result depend on it.",
        ),
    ] = "cpu",
    out: Annotated[
        Path,
        typer.Option(
            metavar="PATH",
            help="File to write (.safetensors), or folder if BASE is a folder.",
            rich_help_panel=options.OUTPUT,
        ),
    ],
    like: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Write a model folder for `afield predict`, with the classes and input format of "
            "this model folder or run. Default: BASE, if it is a model folder.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Only show what would happen to each tensor; write nothing.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = False,
    force: options.Force = False,
) -> None:
    """Merge fine-tuned models of one base into one model, without data.

    Tensors are read, merged and written one at a time, so a model may be
    larger than the memory. Only files saved by torch before 1.6 are read at
    once; save them again if they are too large.
    """
    from afield.deployment.merged_model import write_merged_model
    from afield.deployment.model_files import is_model_folder
    from afield.merging.files import FileMerge
    from afield.merging.scopes import scale_of

    scale = scale_of(registry.find("merges", how)) if scale is None else scale
    planned = FileMerge(
        how,
        base,
        tuple(experts),
        scale,
        tuple(statistics or ()),
        options.parse_assignments(set_ or []),
        device,
    )
    if dry_run:
        _print_preview(planned.preview(out, overwrite=force))
        return
    if like is None and is_model_folder(base):
        like = base
    with console.show_progress():
        if like is None:
            job = planned.write(out, overwrite=force, workers=workers)
        else:
            job = write_merged_model(planned, out, like, overwrite=force, workers=workers)
    console.err.say(_summary(job))
    console.out.say(f"merged model in {out}")


def _print_preview(job: "MergeJob") -> None:
    table = Table(box=None, pad_edge=False)
    for column in ("tensor", "type", "shape", "what happens"):
        table.add_column(column, overflow="fold")
    for name, action in job.actions.items():
        spec = job.base.specs[name]
        shape = " × ".join(map(str, spec.shape)) or "scalar"
        table.add_row(Text(name), str(spec.dtype).removeprefix("torch."), shape, Text(action))
    console.out.print(table)
    console.err.say(f"{_summary(job)}; nothing was written")


def _summary(job: "MergeJob") -> str:
    """What happened to the tensors, e.g. "ties of 2 experts; tensors: 7 merged, 1 kept (…)"."""
    counts = []
    for action, count in sorted(job.counts.items(), key=lambda item: item[0] != "merged"):
        deed, _, reason = action.partition(": ")
        counts.append(f"{count} {deed}" + (f" ({reason})" if reason else ""))
    experts = f"{len(job.experts)} expert{'s' * (len(job.experts) > 1)}"
    return f"{job.how} of {experts}; tensors: {', '.join(counts)}"
