"""Commands that present records: ``table``, ``power``, ``report``, ``archive`` and others."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from afield.cli import console, options
from afield.errors import DataError, SpecError
from afield.files import check_output
from afield.training.metrics import DEFAULT_METRIC

if TYPE_CHECKING:
    from afield.runs.record import Failure, Record
    from afield.runs.store import Store


ShownRules = Annotated[
    str,
    typer.Option(
        metavar="NAMES",
        help="Selection rules to show, separated by commas; see `afield bench --help`. 'all' shows "
        "every rule for which the store holds enough runs. Default: all that never look at the "
        "target.",
        show_default=False,
    ),
]


def table(
    stores: options.StoresArgument = None,
    rules: ShownRules = "",
    metric: options.ShownMetric = DEFAULT_METRIC,
    format_: options.Format = "console",
    *,
    columns: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="Columns to show, in this order, separated by commas: mean,worst,sketch. Default: "
            "all.",
            show_default=False,
        ),
    ] = "",
    caption: Annotated[
        str,
        typer.Option(
            metavar="TEXT",
            help="Caption of the tables with --format latex. Default: what the numbers are.",
            show_default=False,
        ),
    ] = "",
    by_network: Annotated[
        bool,
        typer.Option(
            "--by-network",
            help="A table for each network, in which methods are compared on the same network.",
        ),
    ] = False,
) -> None:
    """Print the results in a store: one table per dataset and selection rule.

    Several stores also give a table with a column per dataset and their mean.
    """
    options.check_format(format_)
    if caption and format_ != "latex":
        raise SpecError("--caption is for --format latex")
    from afield.runs.selection import rules_to_show

    stores = stores or ["runs"]
    read = [_read_records(store) for store in stores]
    # The same run in two stores counts once.
    records = {record.run.key: record for _, of_store in read for record in of_store}
    outcomes: list[Record | Failure] = [*records.values()]
    outcomes += [failure for opened, _ in read for failure in opened.failures()]
    console.print_outcomes(
        outcomes,
        *(opened for opened, _ in read),
        output_format=format_,
        rules=rules_to_show(options.split_names(rules)),
        metric=metric,
        over_datasets=len(stores) > 1,
        columns=options.split_names(columns),
        caption=caption,
        by_network=by_network,
    )


def power(
    store: options.StoreArgument = "runs",
    rule: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Selection rule; see `afield bench --help`. Default: the rule of the report's "
            "headline.",
        ),
    ] = "",
    difference: Annotated[
        float,
        typer.Option(
            metavar="POINTS",
            min=0.01,
            max=100,
            help="Difference in percentage points for which the number of trials is computed.",
        ),
    ] = 1.0,
) -> None:
    """Print which differences a benchmark can detect, and how many trials one point takes.

    Both follow from the spread of the trials in the store. A difference is detected if its 95 %
    interval, corrected for the number of comparisons, excludes 0. It is detectable if that happens
    with a probability of 80 %.
    """
    from afield.reporting.formats import as_power_table
    from afield.runs.selection import resolve_rules

    rules = resolve_rules([rule]) if rule else []
    for part in as_power_table(_read_records(store)[1], rules, difference / 100):
        console.out.print(part, width=min(console.out.width, 80))


def report(
    stores: options.StoresArgument = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="HTML file to write. Default: STORE/report.html; several stores need it.",
        ),
    ] = None,
    rules: ShownRules = "",
    metric: options.ShownMetric = DEFAULT_METRIC,
    force: options.Force = False,
    no_thumbnails: Annotated[
        bool, typer.Option("--no-thumbnails", help="Show no images of the data.")
    ] = False,
) -> None:
    """Write a web page about all runs in a store: best method, tables, curves, cost.

    The page is a single file that works offline, ready to send to others.
    """
    from afield.reporting.page import write_report

    path = write_report(
        stores or ["runs"],
        out,
        rules=options.split_names(rules),
        metric=metric,
        thumbnails=not no_thumbnails,
        overwrite=force,
    )
    console.out.say(f"report in {path}")


def archive(
    stores: options.StoresArgument = None,
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="File to write; its name ends in .jsonl.gz.")
    ] = Path("records.jsonl.gz"),
    force: options.Force = False,
) -> None:
    """Write the records of a store into one small file, to publish beside a paper.

    The file has no weights and no paths of your machine. `afield table`, `power` and `report`
    read it like a store.
    """
    from afield.runs.archive import write_archive

    check_output(out, overwrite=force)
    read = [record for store in stores or ["runs"] for record in _read_records(store)[1]]
    # The same run in two stores counts once.
    number = write_archive(
        {record.run.key: record for record in read}.values(), out, overwrite=force
    )
    console.out.say(f"{number} records in {out}")


def export_domainbed(
    store: options.StoreArgument,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write.")],
    dataset: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="DomainBed's name of the dataset, e.g. RotatedMNIST; its script skips names that "
            "it does not know. Default: the name in afield.",
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite folders of the same runs.")
    ] = False,
) -> None:
    """Write records as results.jsonl files for DomainBed's collect_results script."""
    from afield.reporting.domainbed import export_domainbed as write_results

    folders = write_results(_read_records(store)[1], out, dataset=dataset, overwrite=force)
    console.out.print(f"{len(folders)} runs written to {out}", markup=False)


def _read_records(address: str) -> "tuple[Store, list[Record]]":
    from afield.runs.store import open_store

    store = open_store(address)
    records = list(store)
    if not records and not store.failures():
        raise DataError(
            f"{address}: no records there; run `afield bench --store {address}` first, or give "
            "the store of another bench"
        )
    return store, records
