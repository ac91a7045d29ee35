"""The commands ``afield merge``, ``merge-inspect`` and ``merge-extract``: for trained models."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from afield import registry
from afield.cli import console, options
from afield.errors import SpecError

if TYPE_CHECKING:
    import pandas as pd

    from afield.merging.adapter_files import AdapterMerge, Kept
    from afield.merging.files import FileMerge
    from afield.merging.job import MergeJob


class MergeCommand(options.Command):
    """A command whose help ends with the list of merges."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the usual help, then one line per merge, read from its file without torch."""
        super().format_help(ctx, formatter)
        table = Table(title="merges", title_justify="left", show_header=False, box=None)
        for name in registry.names("merges"):
            # Without the authors, most summaries are one line of 80 columns.
            summary = re.sub(r" \([^()]*\d{4}\)", "", registry.summary("merges", name))
            table.add_row(Text(name, style="bold"), Text(summary))
        # As wide as the help above.
        console.out.print(table, width=Console().width)


def merge(
    how: Annotated[
        str | None,
        typer.Argument(
            metavar="MERGE",
            help="Name of a merge, from the list below; see `afield explain MERGE`.",
        ),
    ] = None,
    base: Annotated[
        Path | None,
        typer.Argument(
            metavar="BASE",
            help="Model from which all experts were fine-tuned: a safetensors file, a Hugging Face "
            "folder, a state dict saved by torch, or a model folder of `afield fit`. Adapters can "
            "be merged without it.",
        ),
    ] = None,
    experts: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="EXPERT", help="Fine-tuned models in the same formats, or adapters of PEFT."
        ),
    ] = None,
    *,
    plan: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Read all of this from a file: a plan in TOML, or a YAML file of mergekit.",
        ),
    ] = None,
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
    expert_weights: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBERS",
            help="Weights of the experts, e.g. 2,1,1. Every change is multiplied by its weight, "
            "divided by the mean weight.",
        ),
    ] = None,
    equalize: Annotated[
        str,
        typer.Option(
            metavar="norm",
            help="Shorten the changes of all experts to the norm of the shortest one.",
        ),
    ] = "",
    leave: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="Leave the tensors whose name matches as they are in the base, e.g. 'head.*'; "
            "experts may have other shapes there. Repeat the option for several.",
        ),
    ] = None,
    space: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Where adapters are merged: full (as matrices), core (in the space that they "
            "span), or auto: core if the result is the same.",
        ),
    ] = "auto",
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
            help="File to write (.safetensors), or folder if BASE is a folder or the result an "
            "adapter.",
            rich_help_panel=options.OUTPUT,
        ),
    ],
    rank: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Write an adapter of this rank instead of whole weights. Default without a BASE: "
            "the largest rank of the adapters.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = None,
    dtype: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Type of the result: float32, float16 or bfloat16. Default: that of BASE.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = "",
    shards: Annotated[
        str,
        typer.Option(
            metavar="SIZE",
            help="Write a folder with files of at most this size, e.g. 5GB.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = "",
    like: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Write a model folder for `afield predict`, with the classes and input format of "
            "this model folder or run. Default: BASE, if it is a model folder.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = None,
    save_plan: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Also write a plan (.toml) that repeats this merge with --plan.",
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

    Adapters of PEFT (LoRA) are merged as the changes they make to the base.
    Without BASE, the result is an adapter again.
    """
    from afield.merging import plan as plans

    if plan is not None:
        given = [how, base, experts, set_, scale, expert_weights, equalize, leave, statistics]
        if any(value not in (None, "", []) for value in [*given, rank, dtype, shards]):
            raise SpecError("--plan has all choices of a merge; give only --out beside it")
        asked = plans.read_plan(plan)
    else:
        asked = plans.MergePlan(
            **_inputs(how, base, experts),
            scale=scale,
            settings=options.parse_assignments(set_ or []),
            weights=_parse_weights(expert_weights),
            overrides=plans.leave_overrides(leave or ()),
            equalize=equalize,
            dtype=dtype,
            shards=shards,
            rank=rank,
            space=cast(Any, space),
            statistics=tuple(statistics or ()),
            device=device,
        )
    if asked.makes_adapter:
        _merge_adapters(asked.adapter_merge(), out, force=force, dry_run=dry_run)
    else:
        _merge_weights(
            asked.file_merge(), out, like=like, workers=workers, force=force, dry_run=dry_run
        )
    if save_plan is not None and not dry_run:
        plans.save_plan(asked, save_plan, overwrite=force)
        console.err.say(f"plan in {save_plan}; repeat with `afield merge --plan {save_plan}`")


def _inputs(how: str | None, base: Path | None, experts: list[Path] | None) -> dict[str, Any]:
    """The merge, the base and the experts; adapters alone have no base."""
    from afield.merging.adapters import is_adapter

    if how is None or base is None:
        raise SpecError("give MERGE BASE EXPERT …, or --plan FILE; see `afield merge --help`")
    registry.find("merges", how)
    if is_adapter(base):
        return {"merge": how, "base": None, "experts": (base, *(experts or ()))}
    if not experts:
        raise SpecError(f"no experts; give the models that were fine-tuned from {base}")
    return {"merge": how, "base": base, "experts": tuple(experts)}


def _parse_weights(text: str | None) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise SpecError(f"--expert-weights {text}: give numbers such as 2,1,1") from None


def _merge_adapters(request: "AdapterMerge", out: Path, *, force: bool, dry_run: bool) -> None:
    if dry_run:
        _print_preview(request.open_job()[1])
        return
    with console.show_progress():
        kept = request.write(out, overwrite=force)
    if kept.job is not None:
        console.err.say(_summary(kept.job))
    console.out.say(f"merged adapter of rank {kept.rank} in {out}; {_share(kept)}")


def _share(kept: "Kept") -> str:
    """How much of the norm an adapter keeps, and the tensor that loses most."""
    text = f"it keeps {100 * kept.share:.1f} % of the norm of the change"
    name, share = kept.worst
    return text + (f" (least in {name}: {100 * share:.1f} %)" if share < 0.9995 else "")


def _merge_weights(
    request: "FileMerge",
    out: Path,
    *,
    like: Path | None,
    workers: int | None,
    force: bool,
    dry_run: bool,
) -> None:
    from afield.deployment.merged_model import write_merged_model
    from afield.deployment.model_files import is_model_folder

    if dry_run:
        _print_preview(request.preview(out, overwrite=force))
        return
    if like is None and is_model_folder(request.base):
        like = request.base
    with console.show_progress():
        if like is None:
            job = request.write(out, overwrite=force, workers=workers)
        else:
            job = write_merged_model(request, out, like, overwrite=force, workers=workers)
    console.err.say(_summary(job))
    console.out.say(f"merged model in {out}")


def merge_extract(
    base: Annotated[
        Path,
        typer.Argument(
            metavar="BASE", help="Model that was fine-tuned: a file or Hugging Face folder."
        ),
    ],
    tuned: Annotated[Path, typer.Argument(metavar="TUNED", help="The fine-tuned model.")],
    *,
    rank: Annotated[
        int, typer.Option(min=1, metavar="N", help="Rank of the adapter; 16 is common.")
    ] = 16,
    out: Annotated[
        Path,
        typer.Option(metavar="FOLDER", help="Folder to write.", rich_help_panel=options.OUTPUT),
    ],
    force: options.Force = False,
) -> None:
    """Make an adapter (LoRA) of a fine-tuned model, in the layout of PEFT.

    The change of every matrix is approximated by factors of the given rank.
    """
    from afield.merging.adapter_files import extract_adapter

    with console.show_progress():
        kept = extract_adapter(base, tuned, out, rank=rank, overwrite=force)
    if kept.left_out:
        console.err.say(
            f"left out: {len(kept.left_out)} changed tensors that an adapter cannot hold, "
            f"e.g. {kept.left_out[0]}"
        )
    console.out.say(f"adapter of rank {kept.rank} in {out}; {_share(kept)}")


def merge_inspect(
    base: Annotated[
        Path,
        typer.Argument(metavar="BASE", help="Model from which the experts were fine-tuned."),
    ],
    experts: Annotated[
        list[Path],
        typer.Argument(
            metavar="EXPERT", help="At least two fine-tuned models, or adapters of PEFT."
        ),
    ],
    *,
    leave: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="Leave out the tensors whose name matches, e.g. 'head.*'; repeat the option for "
            "several.",
        ),
    ] = None,
    tensors: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="Show the N tensors in which experts differ most."),
    ] = 5,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Also write a figure (.png, .svg or .pdf), and the numbers as CSV beside it.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = None,
    force: options.Force = False,
) -> None:
    """Compare fine-tuned models before merging them.

    Shows how far each moved from the base, and how alike the changes are:
    cosines, signs, and directions of matrices. Doubts are printed, e.g.
    about unequal norms, or a base that is not theirs. Nothing is merged.
    """
    from afield.diagnosis.diagnostic import prepare_figure_path
    from afield.diagnosis.merge_inspection import inspect_experts

    target = None if out is None else prepare_figure_path(out, overwrite=force)
    with console.show_progress():
        finding = inspect_experts(base, experts, leave=leave or ())
    tables = dict(finding.extra_tables)
    console.out.print(_number_table(tables["experts"]))
    console.out.print(_number_table(finding.data))
    if tensors:
        console.out.print(_number_table(tables["tensors"][:tensors]))
    console.out.say(finding.summary)
    if target is not None:
        figure, *numbers = finding.save(target, overwrite=force)
        console.err.say(f"figure in {figure}, numbers in {', '.join(map(str, numbers))}")


def _number_table(data: "pd.DataFrame") -> Table:
    """A data frame with texts to the left, and numbers of three digits to the right."""
    table = Table(box=None, pad_edge=False)
    for name, column in data.items():
        is_text = column.dtype.kind not in "fi"
        table.add_column(
            str(name).replace("_", " "), justify="left" if is_text else "right", overflow="fold"
        )
    for row in data.itertuples(index=False):
        table.add_row(*(Text(v if isinstance(v, str) else f"{v:.3g}") for v in row))
    return table


def _print_preview(job: "MergeJob") -> None:
    table = Table(box=None, pad_edge=False)
    for column in ("tensor", "type", "shape", "what happens"):
        table.add_column(column, overflow="fold")
    for name, spec in job.base.specs.items():
        action = job.owner(name).actions.get(name)
        if action is None:
            continue
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
