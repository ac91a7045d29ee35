"""The command ``afield merge …``: many fine-tuned models in, one that generalises out."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text
from typer.core import TyperCommand

from afield import registry
from afield.cli import console
from afield.cli.options import parse_assignments

if TYPE_CHECKING:
    from afield.merging.job import MergeJob

__all__ = ["MergeCommand", "merge"]


class MergeCommand(TyperCommand):
    """A command whose help ends with the merges that there are."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The usual help, then a line on every merge; read from their files, without torch."""
        super().format_help(ctx, formatter)
        table = Table(title="merges", title_justify="left", show_header=False, box=None)
        for name in registry.names("merges"):
            table.add_row(Text(name, style="bold"), Text(registry.summary("merges", name)))
        console.out.print(table)


def merge(
    how: Annotated[str, typer.Argument(help="A merge; `afield explain HOW` says more of it.")],
    base: Annotated[
        Path,
        typer.Argument(
            help="The model that all experts were fine-tuned from: a safetensors file, a folder as "
            "Hugging Face keeps it, or a state dict that torch.save has written."
        ),
    ],
    experts: Annotated[
        list[Path], typer.Argument(metavar="EXPERT...", help="The fine-tuned models, likewise.")
    ],
    *,
    out: Annotated[
        Path, typer.Option(help="File to write (.safetensors); a folder if BASE is one.")
    ],
    like: Annotated[
        Path | None,
        typer.Option(
            help="Write the folder of a model for `afield predict`: its classes and inputs are as "
            "in this folder of a model, or of a run in a store; by default BASE, if it is one of a "
            "model."
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting of the merge, as tau=1.96."),
    ] = None,
    scale: Annotated[
        float, typer.Option(help="How far to go from the base along the merged change.")
    ] = 1.0,
    statistics: Annotated[
        list[Path] | None,
        typer.Option(help="For fisher and regmean: a file for each expert, in their order."),
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, help="Processes, for merges of matrices; the result is the same.")
    ] = 1,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would happen to each tensor, and end.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Merge fine-tuned models of one base into one model, without data.

    Memory does not grow with the model: tensor by tensor is read, merged and written. Only files
    that torch before 1.6 has saved are read whole; save them anew if they are too large.
    """
    from afield.deployment.merged_model import write_merged_model
    from afield.deployment.model_folder import is_model_folder
    from afield.merging.files import FileMerge

    asked = FileMerge(
        how, base, tuple(experts), scale, tuple(statistics or ()), parse_assignments(set_ or [])
    )
    if like is None and is_model_folder(base):
        like = base
    if like is not None and not dry_run:
        with console.show_progress():
            job = write_merged_model(asked, out, like, overwrite=force, workers=workers)
        _tell(job, out)
        return
    if dry_run:
        _print_plan(asked.preview(out, overwrite=force))
        return
    with console.show_progress():
        job = asked.write(out, overwrite=force, workers=workers)
    _tell(job, out)


def _tell(job: "MergeJob", out: Path) -> None:
    console.err.print(_counted(job), markup=False, soft_wrap=True)
    console.out.print(f"merged model in {out}", markup=False, soft_wrap=True)


def _print_plan(job: "MergeJob") -> None:
    table = Table(box=None, pad_edge=False)
    for column in ("tensor", "type", "shape", "what happens"):
        table.add_column(column, overflow="fold")
    for name, action in job.actions.items():
        spec = job.base.specs[name]
        shape = " × ".join(map(str, spec.shape)) or "one number"
        table.add_row(Text(name), str(spec.dtype).removeprefix("torch."), shape, Text(action))
    console.out.print(table)
    console.err.print(f"{_counted(job)}; nothing is written", markup=False, soft_wrap=True)


def _counted(job: "MergeJob") -> str:
    told = ", ".join(f"{count} {rule}" for rule, count in job.counts.items())
    return f"{job.how} of {len(job.experts)} experts: {told}"
