"""The command ``afield diagnose``: look into finished runs."""

from pathlib import Path
from typing import Annotated

import typer

from afield.cli import console
from afield.cli.options import Threads, collect_settings

__all__ = ["diagnose"]


def diagnose(
    name: Annotated[str, typer.Argument(help="A diagnostic; see `afield list diagnostics`.")],
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="Folder of a run, as runs/erm-…; for sensitivity and calibration the store, for "
            "loss_surface one run or three.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="Picture to write (png, svg, pdf); by default it goes to the store, as "
            "runs/diagnostics/NAME-RUN.png, where the report finds it."
        ),
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of the diagnostic, as steps=10.")
    ] = None,
    threads: Threads = 1,
) -> None:
    """Look into finished runs: a picture, its numbers as CSV beside it, and what they say."""
    from afield.diagnosis.diagnosing import diagnose as diagnosed
    from afield.diagnosis.diagnostic import prepare_figure_path
    from afield.reporting.findings import finding_path, keep

    settings = collect_settings(set_)
    target = None if out is None else prepare_figure_path(out)
    with console.show_progress():
        finding = diagnosed(name, paths, settings=settings, threads=threads)
    picture, *tables = finding.save(target or finding_path(name, paths, settings))
    if target is None:
        keep(picture, finding.told, name, paths, settings)
    console.out.print(finding.told, markup=False, soft_wrap=True)
    numbers = ", ".join(map(str, tables))
    console.err.print(f"picture in {picture}, numbers in {numbers}", markup=False, soft_wrap=True)
