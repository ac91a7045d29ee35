"""The commands ``afield list`` and ``afield explain``: what is available, and what it does.

Networks are listed with what is known of their weights; see `afield.networks.facts`.
"""

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
    from afield.networks.facts import NetworkFacts


# What can be listed beside the kinds of the registry.
NETWORKS = "networks"
SETTINGS = "settings"
KINDS = (*registry.KINDS, NETWORKS, SETTINGS)
NETWORK_NUMBERS = ("M parameters", "GMACs", "ImageNet-R", "Sketch")
NETWORK_COLUMNS = ("level", "network", "licence", *NETWORK_NUMBERS, "here")
MISSING = "–"
# The width of text in a wide terminal.
MAX_WIDTH = 100
# How many names of domains or classes are listed.
MAX_NAMES = 20


def list_(
    kind: Annotated[
        str | None,
        typer.Argument(
            metavar="KIND",
            help=f"What to list: {', '.join(KINDS)} (what `--set` can change). By default, all "
            "but the networks and settings.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """List the available methods, datasets and so on, with one line about each."""
    if kind is not None and kind not in KINDS:
        raise UnknownNameError(f"cannot list {kind!r}; {registry.hint(kind, KINDS)}")
    if kind == SETTINGS:
        _print_settings()
        return
    for title in [kind] if kind else registry.KINDS:
        console.out.print(_network_table() if title == NETWORKS else _summaries(title))
    if kind is None:
        console.out.print("networks: see `afield list networks`", markup=False)


def _summaries(kind: str) -> Table:
    table = Table(title=kind, title_justify="left", show_header=False, box=None)
    for name in registry.names(kind):
        table.add_row(Text(name, style="bold"), Text(registry.summary(kind, name)))
    return table


def _network_table() -> Table:
    """The networks of the register, and which of them are on this machine."""
    from afield.networks.facts import REGISTER
    from afield.networks.pretrained import local_weights

    caption = "Any other network of timm, torchvision or open_clip works by its name, too."
    table = Table(title=NETWORKS, title_justify="left", box=None, caption=caption)
    table.caption_justify = "left"
    for heading in NETWORK_COLUMNS:
        table.add_column(heading, justify="right" if heading in NETWORK_NUMBERS else "left")
    for facts in REGISTER:
        numbers = (facts.parameters, facts.gmacs, facts.imagenet_r, facts.sketch)
        shown = [MISSING if number is None else f"{number:.3g}" for number in numbers]
        here = "yes" if local_weights(facts) else "no"
        table.add_row(facts.level, Text(facts.name, style="bold"), facts.license, *shown, here)
    return table


def _print_settings() -> None:
    """A row for each setting that all methods share, from the docstring of `Training`."""
    from afield.data.training_settings import Training

    table = Table(title="settings", title_justify="left", show_header=False, box=None)
    for names, text in describe_parameters(inspect.getdoc(Training) or "").items():
        table.add_row(Text(names.replace(", ", "\n"), style="bold"), Text(text))
    console.out.print(table, width=min(MAX_WIDTH, console.out.width))
    console.out.print(
        "\nDatasets suggest values for most of them; see `afield explain DATASET`. The settings of "
        "a method start with its name, e.g. vrex.penalty=1; see `afield explain METHOD`.",
        markup=False,
        width=min(MAX_WIDTH, console.out.width),
    )


def describe_parameters(docstring: str) -> dict[str, str]:
    r"""The parameters of a docstring in numpy's style: names, and what they mean, in one line.

    >>> describe_parameters("Rate.\n\nParameters\n----------\na, b\n    Two\n    numbers.")
    {'a, b': 'Two numbers.'}
    """
    texts: dict[str, list[str]] = {}
    for line in docstring.partition("----------\n")[2].splitlines():
        if line.startswith(" "):
            texts[next(reversed(texts))].append(line.strip())
        elif line:
            texts[line] = []
    return {names: " ".join(lines).replace("`", "") for names, lines in texts.items()}


def explain(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="Name of a method, merge, average, adaptation, dataset, diagnostic or network.",
        ),
    ],
) -> None:
    """Explain one method, merge, average, adaptation, dataset, diagnostic or network.

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
    if text := _network_text(name):
        return text
    names = [name for kind in registry.KINDS for name in registry.names(kind)]
    raise UnknownNameError(
        f"unknown name {name!r}; {registry.hint(name, names)} (see `afield list`)"
    )


def _network_text(name: str) -> str:
    """What is known of a network, or of the networks of a level; empty if there is none."""
    from afield.networks.facts import LEVELS, network_facts, networks_of_level

    if name in LEVELS:
        parts = [f"{name} (networks): {LEVELS[name]}"]
        names = [facts.name for facts in networks_of_level(name)]
    elif ":" in name and name.partition(":")[0] in registry.names("backbones"):
        parts, names = [], [name]
    else:
        return ""
    for each in names:
        facts = network_facts(each)
        lines = _network_facts(facts) if facts else ["not pretrained: it starts at random weights"]
        parts.append("\n".join([f"{each} (networks)", "", *lines]))
    return "\n\n".join(parts)


def _network_facts(facts: "NetworkFacts") -> list[str]:
    from afield.networks.facts import pretraining_sentence
    from afield.networks.pretrained import local_weights

    scores = {"ImageNet-R": facts.imagenet_r, "ImageNet-Sketch": facts.sketch}
    known = [f"{name} {score:g} %" for name, score in scores.items() if score is not None]
    lines = [
        pretraining_sentence([facts.name]),
        facts.describe(),
        f"accuracy: {', '.join(known)}" if known else "",
        f"level: {facts.level}" if facts.level else "",
        f"weights: {facts.repository} on the Hugging Face hub" if facts.repository else "",
        f"here: {local_weights(facts) or 'no'}",
    ]
    return [line for line in lines if line]


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
