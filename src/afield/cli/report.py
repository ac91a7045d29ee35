"""The command ``afield report``: one page for a store; a bench leaves one as well."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from afield.cli import console

if TYPE_CHECKING:
    from afield.experiments.store import Store

__all__ = ["report", "write_store_report"]


def report(
    store: Annotated[
        str, typer.Argument(metavar="RUNS", help="Folder or address of the records.")
    ] = "runs",
    out: Annotated[
        Path | None, typer.Option(help="File to write; by default RUNS/report.html.")
    ] = None,
) -> None:
    """Write one page on all runs of a store: what does best, tables, curves, cost.

    It is a single file that needs no network; send it as it is.
    """
    from afield.reporting.page import write_report

    path = write_report(store, out)
    console.out.print(f"report in {path}", markup=False, soft_wrap=True)


def write_store_report(store: "Store", *, quiet: bool = False) -> None:
    """Write the page of a store into it, and say where; that it cannot be done is only a note."""
    from afield.reporting.page import write_report

    try:
        path = write_report(store)
    except Exception as error:  # noqa: BLE001  hours of work are done: a page may be made later
        told = f"no report: {' '.join(str(error).split())}; try `afield report {store.where()}`"
        console.err.print(f"note: {told}", markup=False, soft_wrap=True)
    else:
        if not quiet:
            console.err.print(f"report in {path}", markup=False, soft_wrap=True)
