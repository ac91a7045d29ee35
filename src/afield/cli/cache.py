"""The commands ``afield cache list``, ``size`` and ``clear``: what is kept to save time."""

from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from afield.cli import console, options
from afield.errors import SpecError

if TYPE_CHECKING:
    from afield.data.cache_entries import Entry


cache = typer.Typer(
    cls=options.Group,
    help="List and clear decoded files and features, which are kept to save time.",
    no_args_is_help=True,
)


@cache.command(name="list", cls=options.Command)
def list_() -> None:
    """List what the cache holds, the largest first."""
    from afield.data.cache import cache_root
    from afield.data.cache_entries import cache_entries

    entries = cache_entries()
    if entries:
        console.out.print(_table(entries))
    console.out.say(f"{_total(entries)} in {cache_root()}")
    old = [entry for entry in entries if entry.outdated]
    if old:
        console.out.say(f"of these, {_total(old)} of earlier versions: `afield cache clear --old`")


@cache.command(cls=options.Command)
def size() -> None:
    """Print the size of the cache, and where it is."""
    from afield.data.cache import cache_root
    from afield.data.cache_entries import cache_entries

    console.out.say(f"{_total(cache_entries())} in {cache_root()}")


@cache.command(cls=options.Command)
def clear(
    dataset: Annotated[
        str,
        typer.Argument(
            metavar="DATASET",
            help="Remove only what belongs to this dataset, by its name in `afield cache list`.",
            show_default=False,
        ),
    ] = "",
    *,
    old: Annotated[
        bool,
        typer.Option(
            "--old",
            help="Remove only features of earlier versions of a folder, whose files have changed "
            "since.",
        ),
    ] = False,
    older_than: Annotated[
        float,
        typer.Option(
            min=0.0,
            metavar="DAYS",
            help="Remove only what has not been used for this many days.",
            show_default=False,
        ),
    ] = 0.0,
    keep: Annotated[
        str,
        typer.Option(
            metavar="SIZE",
            help="Remove only until the cache is not larger than this, e.g. 2GB: earlier versions "
            "first, then what has not been used for the longest time.",
            show_default=False,
        ),
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be removed.")
    ] = False,
) -> None:
    """Remove decoded files and features; they are made again when they are needed.

    Results, models and your own files are not in the cache. What another
    process uses at the moment stays.
    """
    from afield.data.cache_entries import cache_entries, choose_entries, remove_entries
    from afield.files import parse_size

    entries = cache_entries()
    if dataset and dataset not in (names := {entry.dataset for entry in entries}):
        known = f"it has {', '.join(sorted(filter(None, names)))}" if entries else "it is empty"
        raise SpecError(f"the cache has nothing of {dataset!r}; {known}")
    chosen = choose_entries(
        entries,
        dataset=dataset,
        older_than=older_than,
        outdated=old,
        keep=parse_size(keep, option="--keep") if keep else None,
    )
    if dry_run:
        if chosen:
            console.out.print(_table(chosen))
        console.out.say(f"would remove {_total(chosen)}")
        return
    busy = remove_entries(chosen)
    console.out.say(f"removed {_total([entry for entry in chosen if entry not in busy])}")
    if busy:
        console.err.say(f"kept, because another process uses it: {_total(busy)}")


def _total(entries: "list[Entry]") -> str:
    from afield.files import format_bytes

    count = f"{len(entries)} {'entry' if len(entries) == 1 else 'entries'}"
    return f"{format_bytes(sum(entry.size for entry in entries))} ({count})"


def _table(entries: "list[Entry]") -> Table:
    from time import localtime, strftime

    from afield.files import format_bytes

    table = Table(box=box.SIMPLE, pad_edge=False)
    for column in ("dataset", "content", "size", "last used", ""):
        table.add_column(column, overflow="fold", justify="right" if column == "size" else "left")
    for entry in entries:
        used = strftime("%Y-%m-%d", localtime(entry.used))
        note = "earlier version" if entry.outdated else ""
        cells = (entry.dataset, entry.content, format_bytes(entry.size), used, note)
        table.add_row(*map(Text, cells))
    return table
