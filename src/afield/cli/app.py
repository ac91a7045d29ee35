"""The command line: all commands, and the exit codes of errors.

Commands import torch and other large packages inside their functions, so that help is fast.
"""

import errno
import logging
import os
import sys
from importlib import import_module
from typing import Annotated

import typer

from afield import interruption, own_code
from afield.cli import console, options
from afield.errors import AfieldError

# What to do about errors of the file system.
FILE_ADVICE = {
    errno.ENOSPC: "; free some space, or write elsewhere",
    errno.EDQUOT: "; free some space, or write elsewhere",
    errno.EFBIG: "; write to a file system that allows larger files",
    errno.EROFS: "; write elsewhere",
    errno.EACCES: "; check the permissions, or write elsewhere",
}

app = typer.Typer(
    cls=options.Group,
    no_args_is_help=True,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
# Commands by their modules, in the order of `afield --help`, under its headings.
COMMANDS: dict[str, tuple[str, ...]] = {
    "Compare methods": (
        *("bench.bench", "bench.sweep", "bench.work", "bench.status"),
        *("report.table", "report.power", "report.report", "report.archive", "recipe.recipe"),
    ),
    "Look closer": ("train.train", "diagnose.diagnose", "report.export_domainbed"),
    "Make and use a model": (
        *("model.fit", "predict.predict", "evaluate.evaluate", "evaluate.estimate"),
        *("model.export", "model.push"),
    ),
    "Merge models": ("merge.merge", "merge.merge_inspect", "merge.merge_extract"),
    "Data": ("embed.embed", "data.data", "cache.cache"),
    "Look up": ("explain.list_", "explain.explain"),
    "Extend": ("new.new",),
}


def _add(place: str, heading: str) -> None:
    """Add a command, or a group of commands, to the command line."""
    module, _, name = place.partition(".")
    home = import_module(f"afield.cli.{module}")
    command, shown = getattr(home, name), name.strip("_").replace("_", "-")
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=shown, rich_help_panel=heading)
    else:
        # The command `merge` has help of its own.
        kind = getattr(home, f"{name.title()}Command", options.Command)
        app.command(name=shown, cls=kind, rich_help_panel=heading)(command)


for heading, places in COMMANDS.items():
    for place in places:
        _add(place, heading)


@app.callback()
def afield(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
    code: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="Your own code that a TOML file, record or model needs: my_idea.py or "
            "package.module:Name. Repeat the option for several.",
        ),
    ] = None,
) -> None:
    """Domain generalization: trained at home, tested afield.

    Start with `afield bench`, which compares a few methods on a small dataset.
    """
    if version:
        from importlib.metadata import version as installed

        console.out.print(f"afield {installed('afield')}")
        raise typer.Exit
    for origin in code or ():
        own_code.load("", origin)


def main() -> None:
    """Run the command line; an error that the user can correct is one line and exit code 2."""
    # The hub logs every attempt, twice; we report one error when it gives up.
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    logging.basicConfig(
        level=logging.WARNING, format="note: %(message)s", handlers=[console.NoteHandler()]
    )
    interruption.handle_signals(_announce_stop)
    try:
        app(prog_name="afield")
    except SystemExit as end:
        sys.exit(_exit_code(end))
    except AfieldError as error:
        _fail(error)
    except BrokenPipeError:
        _flush()
        sys.exit(1)
    except OSError as error:
        advice = FILE_ADVICE.get(error.errno or 0, "")
        own = own_code.describe_error(error)
        _fail(own or (f"{error.filename}: {error.strerror}{advice}" if error.filename else error))
    except Exception as error:
        own = own_code.describe_error(error)
        if not own:
            raise
        _fail(own)


def _exit_code(end: SystemExit) -> str | int | None:
    # Ray replaces the exit code of what interrupts its calls.
    code = interruption.requested()
    own = own_code.describe_error(end)
    if own and not code:
        _fail(own)
    _flush()
    return code or end.code


def _flush() -> None:
    """Write what is buffered; if nobody reads it any more, keep Python from reporting that."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: object) -> None:
    console.err.say(f"error: {' '.join(str(message).split())}")
    sys.exit(2)


def _announce_stop() -> None:
    """Say what Ctrl-C and SIGTERM do: finished runs are in the store, the others can go on."""
    console.err.print("stopped; run the same command again to continue")
