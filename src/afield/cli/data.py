"""The commands ``afield data …``: which datasets are here, get one, look into one."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from afield.cli import console

if TYPE_CHECKING:
    from afield.data.inspection import Inspection

__all__ = ["data"]

# Beyond so many columns a terminal is too narrow for one a class.
MAX_CLASS_COLUMNS = 12
# How many remarks are printed.
MAX_REMARKS = 20

data = typer.Typer(help="Which datasets are here, get one, look into one.", no_args_is_help=True)


@data.command(name="list")
def list_() -> None:
    """Say which datasets are here, and where the others come from."""
    from afield.data.availability import list_availability
    from afield.data.domains import data_root

    title = Text(f"datasets in {data_root()}")
    table = Table(box=box.SIMPLE, title=title, title_justify="left")
    for column in ("dataset", "here", "comes from"):
        # An address that is cut is of no use.
        table.add_column(column, overflow="fold")
    for each in list_availability():
        here = Text("yes", style="bold") if each.available else Text("no")
        table.add_row(Text(each.name), here, Text("" if each.available else each.how_to_get))
    console.out.print(table)


@data.command()
def get(
    name: Annotated[str, typer.Argument(help="A dataset's name; see `afield data list`.")],
) -> None:
    """Download a dataset, check it, and unpack it; a broken download goes on where it was."""
    from afield.data.availability import get_dataset
    from afield.data.domains import data_root

    with console.show_progress():
        dataset = get_dataset(name)
    told = f"{len(dataset.domains)} domains, {len(dataset.classes)} classes"
    where = f"in {data_root()}" if dataset.needs else "comes with afield, nothing is to be fetched"
    console.out.print(f"{name}: {where} ({told})", markup=False, soft_wrap=True)


@data.command()
def check(
    dataset: Annotated[str, typer.Argument(help="A dataset's name, a folder, or an .npz.")],
    out: Annotated[
        Path | None, typer.Option(help="Picture to draw: a sample of each domain and class.")
    ] = None,
) -> None:
    """Count what is in a dataset; name broken files, copies across domains, and imbalance.

    Ends with exit code 1 where files are broken.
    """
    from afield.data.inspection import contact_sheet, inspect_dataset

    with console.show_progress():
        found = inspect_dataset(dataset)
    console.out.print(_counts(found))
    remarks = found.remarks
    for remark in remarks[:MAX_REMARKS]:
        console.out.print(f"- {remark}", markup=False, soft_wrap=True)
    if len(remarks) > MAX_REMARKS:
        console.out.print(f"- and {len(remarks) - MAX_REMARKS} more")
    if out is not None:
        path = contact_sheet(found, out)
        console.err.print(f"contact sheet in {path}", markup=False, soft_wrap=True)
    if found.broken:
        raise typer.Exit(1)


def _counts(found: "Inspection") -> Table:
    """Samples of every domain and class; where these have no room, the least and the most."""
    dataset, counts = found.dataset, found.counts
    if len(dataset.classes) <= MAX_CLASS_COLUMNS:
        table = _table(found, dataset.classes, counts.tolist())
        unlimited = console.out.options.update(width=10_000)
        if console.out.measure(table, options=unlimited).maximum <= console.out.width:
            return table
    ends = [(row.min(), row.max()) for row in counts]
    return _table(found, ("least of a class", "most of a class"), ends)


def _table(found: "Inspection", columns: Sequence[str], cells: Iterable[Sequence[int]]) -> Table:
    shape = " × ".join(str(side) for side in next(iter(found.domains.values())).x.shape[1:])
    title = Text(f"{found.dataset.name}: {found.counts.sum():,} samples ({shape})")
    table = Table(
        box=box.SIMPLE, title=title, title_justify="left", collapse_padding=True, pad_edge=False
    )
    table.add_column("domain", overflow="fold")
    for column in (*columns, "all"):
        table.add_column(Text(column), justify="right", overflow="fold")
    for name, row, every in zip(found.dataset.domains, cells, found.counts.sum(1), strict=True):
        table.add_row(Text(name), *(f"{cell:,}" for cell in (*row, every)))
    return table
