"""The commands ``afield data list``, ``get`` and ``check``: list, download and check datasets."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from afield.cli import console, options
from afield.errors import DataError

if TYPE_CHECKING:
    from afield.data.inspection import Inspection
    from afield.data.modality import Fact


# With more classes than this, `check` shows no column per class: terminals are too narrow.
MAX_CLASS_COLUMNS = 12
# How many remarks `check` prints.
MAX_REMARKS = 20

data = typer.Typer(
    cls=options.Group, help="List, download and check datasets.", no_args_is_help=True
)


@data.command(name="list", cls=options.Command)
def list_() -> None:
    """List all datasets: which ones are here, and how to get the others."""
    from afield.data.domains import data_root
    from afield.data.inspection import list_availability

    title = Text(f"datasets in {data_root()}")
    table = Table(box=box.SIMPLE, title=title, title_justify="left")
    for column in ("dataset", "here", "how to get it"):
        # Fold long addresses: a truncated address is useless.
        table.add_column(column, overflow="fold")
    for dataset in list_availability():
        here = Text("yes", style="bold") if dataset.available else Text("no")
        table.add_row(
            Text(dataset.name), here, Text("" if dataset.available else dataset.how_to_get)
        )
    console.out.print(table)


@data.command(cls=options.Command)
def get(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="Name of a dataset; see `afield data list`."),
    ],
) -> None:
    """Download, verify and unpack a dataset.

    An interrupted download continues where it stopped.
    """
    from afield.data.domains import data_root
    from afield.data.inspection import get_dataset

    with console.show_progress():
        dataset = get_dataset(name)
    where = f"in {data_root()}" if dataset.needs else "part of afield, nothing to download"
    size = f"{len(dataset.domains)} domains, {len(dataset.classes)} classes"
    console.out.say(f"{name}: {where} ({size})")


@data.command(cls=options.Command)
@options.with_options("label", "domain", "column_types", "drop", "class_names", "templates")
def check(
    dataset: options.DatasetArgument,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Also write an image with one sample of each domain and class, e.g. sheet.png.",
        ),
    ] = None,
    force: options.Force = False,
    decode: Annotated[
        bool,
        typer.Option(
            "--decode",
            help="Decode every image, also of more than 20,000. By default only the headers of "
            "so many files are read, so files that are cut short are not found.",
        ),
    ] = False,
    skip_strays: Annotated[
        bool,
        typer.Option(
            "--skip-strays",
            help="From now on, leave out files and folders in the wrong place: their names are "
            "written to files .afieldignore beside them, which every command honors.",
        ),
    ] = False,
    **values: Any,
) -> None:
    """Count the samples of a dataset, and report problems.

    For image files, the sizes of the smallest, median and largest image of
    every domain are shown too, and for texts their median lengths. With
    --class-names or --templates, the prompts for CLIP are shown.

    Problems are broken files, the same sample in several domains, missing
    classes and imbalance. The exit code is 1 if files are broken.
    """
    from afield.data.inspection import contact_sheet, sheet_path
    from afield.files import check_output

    if out is not None:
        check_output(sheet_path(out), overwrite=force)
    if skip_strays:
        _skip_strays(Path(dataset).expanduser())
    inspection = _inspect(dataset, values, decode=decode)
    files = (values["class_names"] or "", values["templates"] or "")
    _print_inspection(inspection, files)
    if out is not None:
        path = contact_sheet(inspection, out)
        console.err.say(f"contact sheet in {path}")
    if inspection.broken:
        raise typer.Exit(1)


def _inspect(dataset: str, values: dict[str, Any], *, decode: bool) -> "Inspection":
    """Read a dataset; if a folder has files in the wrong place, print all of them and exit."""
    from afield.data.inspection import inspect_dataset

    try:
        with console.show_progress():
            return inspect_dataset(options.name_dataset(dataset, values), decode=decode)
    except DataError:
        if not _print_strays(Path(dataset).expanduser()):
            raise
        raise typer.Exit(1) from None


def _print_inspection(inspection: "Inspection", files: tuple[str, str]) -> None:
    """Print counts, facts and remarks; `files` are those of the prompts for a CLIP."""
    from afield.data.inspection import describe_facts, describe_prompts

    console.out.print(_count_table(inspection))
    facts = inspection.facts
    if sizes := [fact for fact in facts if isinstance(fact.value, tuple)]:
        console.out.print(_size_table(sizes))
    lines = describe_facts([fact for fact in facts if isinstance(fact.value, int)])
    # Only a CLIP sees prompts; whoever names files for them wants to read them.
    prompts = describe_prompts(inspection.dataset, *files) if any(files) else []
    for line in [*lines, *prompts]:
        console.out.say(line)
    if not inspection.decoded:
        console.err.say("only headers were read; --decode also finds images that are cut short")
    _print_remarks(inspection.remarks)


def _print_strays(folder: Path) -> bool:
    """Print all files and folders that are in the wrong place; returns whether there are any."""
    from afield.data.sources.folders import folder_strays

    strays = folder_strays(folder) if folder.is_dir() else []
    for stray in strays:
        console.out.say(f"- {stray}")
    if strays:
        console.err.say(
            f"{folder} cannot be read before these {len(strays)} are moved elsewhere; "
            "--skip-strays leaves them out"
        )
    return bool(strays)


def _skip_strays(folder: Path) -> None:
    """Leave out everything in the wrong place, and say what."""
    from afield.data.sources.folders import folder_strays
    from afield.data.sources.strays import IGNORE_FILE, leave_out

    strays = folder_strays(folder) if folder.is_dir() else []
    leave_out(strays)
    for stray in strays:
        console.err.say(f"left out: {stray}")
    if strays:
        console.err.say(f"{len(strays)} left out, by the files {IGNORE_FILE} in their folders")


def _print_remarks(remarks: Sequence[str]) -> None:
    for remark in remarks[:MAX_REMARKS]:
        console.out.say(f"- {remark}")
    if len(remarks) > MAX_REMARKS:
        console.out.print(f"- and {len(remarks) - MAX_REMARKS} more")


def _count_table(inspection: "Inspection") -> Table:
    """Samples per domain and class; if the classes do not fit, the smallest and largest class."""
    classes, counts = inspection.dataset.classes, inspection.counts
    if len(classes) <= MAX_CLASS_COLUMNS:
        table = _format_counts(inspection, classes, counts.tolist())
        unlimited = console.out.options.update(width=10_000)
        if console.out.measure(table, options=unlimited).maximum <= console.out.width:
            return table
    extremes = [(row.min(), row.max()) for row in counts]
    return _format_counts(inspection, ("smallest class", "largest class"), extremes)


def _size_table(facts: "Sequence[Fact]") -> Table | str:
    """Original sizes of the images, in a line if all are equal."""
    sizes: dict[str, list[str]] = {}
    for fact in facts:
        sizes.setdefault(fact.subject, []).append(str(fact))
    if len({fact.value for fact in facts}) == 1:
        return f"all images: {sizes[facts[0].subject][0]} pixels"
    title = Text("original sizes in pixels, by area")
    table = Table(box=box.SIMPLE, title=title, title_justify="left", pad_edge=False)
    table.add_column("domain", overflow="fold")
    for column in ("smallest", "median", "largest"):
        table.add_column(column, justify="right")
    for name, of_domain in sizes.items():
        table.add_row(Text(name), *of_domain)
    return table


def _format_counts(
    inspection: "Inspection", columns: Sequence[str], rows: Iterable[Sequence[int]]
) -> Table:
    """A table with a row per domain, whose last column is the sum of the domain."""
    dataset, counts = inspection.dataset, inspection.counts
    shape = " × ".join(str(side) for side in next(iter(inspection.domains.values())).x.shape[1:])
    title = Text(f"{dataset.name}: {counts.sum():,} samples ({shape})")
    table = Table(
        box=box.SIMPLE, title=title, title_justify="left", collapse_padding=True, pad_edge=False
    )
    table.add_column("domain", overflow="fold")
    for column in (*columns, "all"):
        table.add_column(Text(column), justify="right", overflow="fold")
    for name, row, total in zip(dataset.domains, rows, counts.sum(1), strict=True):
        table.add_row(Text(name), *(f"{count:,}" for count in (*row, total)))
    return table
