"""The commands ``afield list`` and ``afield explain``: what is available, and what it does."""

import inspect
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from afield import registry
from afield.cli import console
from afield.errors import UnknownNameError

if TYPE_CHECKING:
    from afield.hyperparameters import Range


# The width of text in a wide terminal.
MAX_WIDTH = 100
# How many names of domains or classes are listed.
MAX_NAMES = 20


def list_(
    kind: Annotated[
        str | None,
        typer.Argument(
            metavar="KIND",
            help=f"What to list: {', '.join(registry.KINDS)}. By default, all of these.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """List the available methods, datasets and so on, with one line about each."""
    if kind is not None and kind not in registry.KINDS:
        raise UnknownNameError(f"cannot list {kind!r}; {registry.hint(kind, registry.KINDS)}")
    for title in [kind] if kind else registry.KINDS:
        table = Table(title=title, title_justify="left", show_header=False, box=None)
        for name in registry.names(title):
            table.add_row(Text(name, style="bold"), Text(registry.summary(title, name)))
        console.out.print(table)


def explain(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="Name of a method, merge, average, adaptation, dataset or diagnostic.",
        ),
    ],
) -> None:
    """Explain one method, merge, average, adaptation, dataset or diagnostic.

    Shows its description and its settings, with their defaults and search ranges.
    """
    text = explanation_text(name)
    # The last part has a fact in each line.
    description, gap, facts = text.rpartition("\n\n")
    description = fill_paragraphs(description, min(MAX_WIDTH, console.out.width))
    console.out.say(f"{description}{gap}{facts}")


def fill_paragraphs(text: str, width: int) -> str:
    r"""Fill the paragraphs of a text to a width; formulas, lists and settings stay as they are.

    >>> print(fill_paragraphs("one two three\nfour\n\n    x = y + z", 10))
    one two
    three four
    <BLANKLINE>
        x = y + z
    """
    blocks = text.split("\n\n")
    return "\n\n".join(
        block
        if any(line.startswith((" ", "- ", "|")) for line in block.splitlines())
        else textwrap.fill(block, width, break_long_words=False, break_on_hyphens=False)
        for block in blocks
    )


def explanation_text(name: str) -> str:
    """Description, settings and search ranges of whatever has this name.

    >>> print(explanation_text("groupdro").splitlines()[-1])
      eta = 0.01    (draws: 0.001 to 0.1, on a log scale)
    """
    for kind in registry.KINDS:
        if name in registry.names(kind):
            facts = _dataset_facts(name) if kind == "datasets" else _settings_facts(kind, name)
            return "\n".join([f"{name} ({kind})", "", registry.docstring(kind, name), "", *facts])
    names = [name for kind in registry.KINDS for name in registry.names(kind)]
    raise UnknownNameError(
        f"unknown name {name!r}; {registry.hint(name, names)} (see `afield list`)"
    )


def _dataset_facts(name: str) -> list[str]:
    from afield.data.lookup import find_dataset

    dataset = find_dataset(name)
    download, training = dataset.download, vars(dataset.training)
    how_to_get = f"`afield data get {name}`" if download.archives else download.instructions
    facts = [
        f"domains: {_format_names(dataset.domains)}",
        f"classes: {_format_names(dataset.classes)}",
        "training: " + ", ".join(f"{name} {value}" for name, value in training.items() if value),
        f"here: no; {how_to_get}" if dataset.missing_files() else "here: yes",
    ]
    return [*facts, f"license: {download.license}"] if download.license else facts


def _format_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return (", ".join(names[:MAX_NAMES]) + more) or "known once the files are here"


def _settings_facts(kind: str, name: str) -> list[str]:
    """The docstring of the class or function, which explains its settings, and their ranges."""
    from afield.hyperparameters import defaults, ranges

    instance = registry.find(kind, name)
    settings = defaults(instance)
    words = {name: f"    ({describe_range(each)})" for name, each in ranges(instance).items()}
    return [
        f"{inspect.cleandoc(instance.__doc__ or '')}\n",
        "settings:" if settings else "settings: none",
        *(f"  {name} = {_typed(value)}{words.get(name, '')}" for name, value in settings.items()),
    ]


def _typed(value: object) -> str:
    """A value as one types it after ``--set NAME=``."""
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "''"
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def describe_range(range_: "Range") -> str:
    """What draws choose from, in words.

    >>> from afield.hyperparameters import LogUniform, Variant
    >>> describe_range(LogUniform(0.1, 1e5)), describe_range(Variant((1, 2)))
    ('draws: 0.1 to 100000, on a log scale', 'one of 1, 2; draws keep the default')
    """
    from afield.hyperparameters import Around, Choice, LogUniform, Variant

    if isinstance(range_, Choice):
        several = any(isinstance(option, tuple) for option in range_.options)
        options = (" or " if several else ", ").join(map(_typed, range_.options))
        keeps = isinstance(range_, Variant)
        return f"one of {options}; draws keep the default" if keeps else f"draws: one of {options}"
    ends = f"{range_.low:g} to {range_.high:g}"
    if isinstance(range_, Around):
        return f"draws: {ends} times the default, on a log scale"
    return f"draws: {ends}" + ", on a log scale" * isinstance(range_, LogUniform)
