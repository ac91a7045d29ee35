"""The command ``afield diagnose``: examine finished runs."""

from pathlib import Path
from typing import Annotated, Any

import typer

from afield import registry
from afield.cli import console, options


@options.with_options("threads")
def diagnose(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help=f"Diagnostic: {', '.join(registry.names('diagnostics'))}. "
            "See `afield explain NAME`.",
        ),
    ],
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="Folders of finished runs, e.g. runs/erm-…. Diagnostics that read all records of "
            "a store take its folder instead.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Figure to write (.png, .svg or .pdf). Default: a file in STORE/diagnostics, "
            "which `afield report` includes.",
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Change a setting of the diagnostic, e.g. samples=100; repeat the option for "
            "several.",
        ),
    ] = None,
    force: options.Force = False,
    **values: Any,
) -> None:
    """Examine finished runs: draw a figure, write its numbers as CSV and print a summary."""
    from afield.diagnosis.diagnostic import diagnose as find_out
    from afield.diagnosis.diagnostic import prepare_figure_path
    from afield.reporting.findings import finding_path, keep

    settings = options.collect_settings(set_)
    target = None if out is None else prepare_figure_path(out, overwrite=force)
    with console.show_progress():
        finding = find_out(name, paths, settings=settings, **values)
    figure, *tables = finding.save(
        target or finding_path(name, paths, settings), overwrite=target is None or force
    )
    if target is None:
        keep(figure, finding.summary, name, paths, settings)
    console.out.say(finding.summary)
    numbers = ", ".join(map(str, tables))
    console.err.say(f"figure in {figure}, numbers in {numbers}")
