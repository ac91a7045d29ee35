"""The command ``afield report``: one page for a store; a bench leaves one as well."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from afield.cli import console
from afield.cli.options import Format, Rules, check_format, split_names
from afield.errors import DataError

if TYPE_CHECKING:
    from afield.experiments.record import Failure, Record
    from afield.experiments.store import Store

__all__ = ["export_domainbed", "report", "table", "write_store_report"]


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


def table(
    store: Annotated[str, typer.Argument(help="Folder or address of the records.")] = "runs",
    rules: Rules = "all",
    format_: Format = "console",
) -> None:
    """Show what a store holds: one table a dataset, all selection rules for which it suffices."""
    check_format(format_)
    from afield.experiments.selection import resolve_rules

    place, records = _records_of(store)
    known: list[Record | Failure] = [*records, *place.failures()]
    console.print_outcomes(
        known, place, output_format=format_, rules=resolve_rules(split_names(rules))
    )


def export_domainbed(
    runs: Annotated[str, typer.Argument(help="Folder or address of the records.")],
    into: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write.")],
    dataset: Annotated[
        str | None,
        typer.Option(help="A dataset's name in DomainBed, whose script shows only those it knows."),
    ] = None,
) -> None:
    """Write records as DomainBed's results.jsonl, for its collect_results script."""
    from afield.reporting.domainbed import export_domainbed as export

    folders = export(_records_of(runs)[1], into, dataset=dataset)
    console.out.print(f"{len(folders)} runs written to {into}", markup=False)


def _records_of(address: str) -> "tuple[Store, list[Record]]":
    from afield.experiments.remote_store import open_store

    store = open_store(address)
    records = list(store)
    if not records and not store.failures():
        raise DataError(f"{address}: no records there; run `afield bench --store {address}` first")
    return store, records
