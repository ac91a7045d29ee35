"""Commands of the shell that ask for a benchmark, for the row of a table, or for a model again."""

import shlex
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from afield.data.frames import ColumnChoice, split_spec
from afield.runs.record import Record
from afield.runs.row import Row
from afield.runs.run import TARGETS, Run, name_without_path
from afield.studies.benchmark import Benchmark
from afield.studies.protocol import Protocol

# Settings with an option of their own; the others are passed with --set.
OPTION_SETTINGS = (
    *("backbone", "weights", "start", "steps", "domains_per_step", "metric"),
    *("class_names", "templates", "report", "split"),
)


def write_command(
    command: str,
    *arguments: str,
    options: Iterable[tuple[str, Any]] = (),
    code: Iterable[str] = (),
) -> str:
    """A command of afield that can be pasted into a shell.

    Parameters
    ----------
    command, arguments
        The name of the command, and its arguments.
    options
        Names and values. Several values are separated by commas, a truth value is a flag, and
        options that are None or empty are left out.
    code
        The user's own code that the command needs, as in `Run.code`: in files with the names that
        records keep.

    Examples
    --------
    >>> write_command("bench", "own data", options=[("methods", ["erm", "vrex"]), ("draws", None)])
    "afield bench 'own data' --methods erm,vrex"
    """
    own = [word for each in code for word in ("--code", f"{each.partition('/')[2]}.py")]
    words = ["afield", *own, command, *arguments]
    for name, value in options:
        words += _option_words(name.replace("_", "-"), value)
    return " ".join(map(shell_quote, words))


def _option_words(name: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    if isinstance(value, list | tuple):
        value = ",".join(map(str, value))
    return [] if value is None or value == "" else [f"--{name}", str(value)]


def shell_quote(word: str) -> str:
    r"""Quote a word for a shell; invisible characters are escaped as in bash.

    >>> print(shell_quote("own data"), shell_quote("a\u202eb"))
    'own data' $'a\u202eb'
    """
    if all(unicodedata.category(c)[0] != "C" and unicodedata.category(c) != "Zl" for c in word):
        return shlex.quote(word)
    plain = word.replace("\\", "\\\\").replace("'", "\\'")
    return "$'" + "".join(c if c.isprintable() else _escape(c) for c in plain) + "'"


def _escape(character: str) -> str:
    number = ord(character)
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def benchmark_command(benchmark: Benchmark) -> str:
    """The command that asks for a benchmark.

    >>> from afield.studies.benchmark import make_benchmark
    >>> benchmark_command(make_benchmark("spirals", "erm", trials=1, steps=10))
    'afield bench spirals --methods erm --trials 1 --set steps=10'
    """
    options = [
        (option.name, getattr(benchmark, option.name))
        for option in fields(benchmark)
        if option.name not in ("dataset", "settings")
        and getattr(benchmark, option.name) != option.default
    ]
    for name, value in benchmark.settings.items():
        several = isinstance(value, list | tuple)
        options.append(("set", f"{name}={','.join(map(str, value)) if several else value}"))
    return write_command("bench", *benchmark.dataset, options=options)


def row_command(
    records: Sequence[Record],
    *,
    store: str,
    merge: str = "average",
    trials: int = 0,
    beside: Sequence[str] = (),
    start: str = "",
) -> str:
    """The command that reproduces the records of one row in another store.

    Parameters
    ----------
    records
        All records of a row.
    store
        The store for the new runs.
    merge
        The merge to ask for if the row is a baseline that comes with every merge.
    trials
        The number of trials; by default that of the records.
    beside
        Methods to run beside that of the row.
    start
        The start of these methods, if the row is a merge, which has none.
    """
    runs = [record.run for record in records]
    first, row, protocol = runs[0], Row.of(runs[0]), Protocol.of(records)
    dataset, columns = data_words(first)
    alone = [] if row.is_merged or row.method in beside else [row.method]
    options = [
        *columns,
        ("methods", [*beside, *alone]),
        ("merges", "" if not row.is_merged else merge if row.is_baseline else row.method),
        ("trials", trials or protocol.trials),
        ("draws", protocol.draws if protocol.draws > 1 else None),
        *protocol.options(),
        ("average", "" if row.average == "last" else row.average),
        ("ensemble", row.members or None),
        ("adapt", row.adaptation),
        ("classes", _classes(runs)),
        ("start", start),
        *_settings(first),
        ("group", first.group.partition("@")[0]),
        ("threads", _threads(records[0].device)),
        ("store", store),
    ]
    return write_command("bench", dataset, options=options, code=first.code)


def data_words(run: Run) -> tuple[str, list[tuple[str, Any]]]:
    """The name of a run's data for a command, without its place, and the columns as options."""
    path, choice = split_spec(run.dataset) if "?" in run.dataset else (run.dataset, ColumnChoice())
    columns = ("label", "domain", "text")
    options = [(name, getattr(choice, name)) for name in columns]
    options += [("column_types", choice.types), ("drop", choice.drop)]
    return Path(path).name, options


def _classes(runs: Sequence[Run]) -> str | None:
    """The choice of classes, where it is not the default."""
    chosen = next((run.given["classes"] for run in runs if "classes" in run.given), None)
    if chosen is None and any(run.classes for run in runs) and not runs[0].data:
        return "sources"
    return chosen


def _settings(run: Run) -> Iterator[tuple[str, Any]]:
    """The settings chosen by hand, as options."""
    for name, value in run.given.items():
        if name in ("classes", TARGETS) or (name == "domains" and run.tested):
            continue
        if name == "skip_broken":
            yield name, True
        elif name == "finetune":
            yield from [("backbone", run.encoder), (name, value)]
        elif name in ("base_steps", "expert_draws") and run.experts:
            yield name, value
        elif name == "experts" and run.experts:
            yield "expert_method", str(value).replace("+", ",")
        elif name in OPTION_SETTINGS:
            yield name, name_without_path(str(value))
        else:
            # Records keep the settings of an expert's method with a space instead of a dot.
            yield "set", f"{name.replace(' ', '.') if run.experts else name}={value}"


def _threads(device: str) -> str:
    """The number of threads, which changes the last digits of sums; empty for one."""
    word = device.rpartition(", ")[2].partition(" ")[0]
    return word if word.isdecimal() and word != "1" else ""
