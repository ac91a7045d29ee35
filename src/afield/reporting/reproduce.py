"""The commands that reproduce a row of a table, or one run, from its records."""

import shlex
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from afield.runs.merged import MERGE_BASELINES
from afield.runs.record import Record, Run
from afield.runs.run import name_without_path
from afield.runs.selection import RULES, Division, default_rules
from afield.studies.domain_choice import TARGETS, is_held_out_share, is_single_source

__all__ = ["row_command", "run_command", "shell_quote"]

# Settings with an option of their own; the others are passed with --set.
OPTION_SETTINGS = (
    *("backbone", "weights", "start", "steps", "domains_per_step", "metric"),
    *("class_names", "templates", "report", "split"),
)


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
    first = runs[0]
    words = ["afield", *_code(first), "bench", Path(first.dataset).name]
    methods = [*beside, *([] if first.experts or first.method in beside else [first.method])]
    if methods:
        words += ["--methods", ",".join(methods)]
    if first.experts:
        words += ["--merges", merge if first.method in MERGE_BASELINES else first.method]
    words += ["--trials", str(trials or 1 + max(run.trial for run in runs))]
    if any(run.draw for run in runs):
        words += ["--draws", str(1 + max(run.draw for run in runs))]
    words += _held_out(records[0]) if is_held_out_share(records[0]) else _chosen_domains(records)
    if first.average != "last":
        words += ["--average", first.average]
    if first.adaptation:
        words += ["--adapt", first.adaptation]
    words += _classes(runs)
    words += ["--start", start] if start else []
    words += _settings(first.given, first)
    if first.group:
        words += ["--group", first.group.partition("@")[0]]
    words += _threads(records[0].device)
    return " ".join(shell_quote(word) for word in [*words, "--store", store])


def run_command(run: Run, *, from_store: str, store: str) -> str:
    """The command that repeats one run from its record in `from_store`.

    A merged or adapted model needs the command of its row.
    """
    words = ["afield", *_code(run), "train", "--like", f"{from_store}/{run.key}"]
    words += ["--store", store]
    return " ".join(shell_quote(word) for word in words)


def _code(run: Run) -> list[str]:
    """The user's own code that a run needs, in files with the names that the record keeps."""
    return [word for each in run.code for word in ("--code", f"{each.partition('/')[2]}.py")]


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


def _held_out(record: Record) -> list[str]:
    """The shares of held-out domains, with as few digits as give the same numbers of domains."""
    run = record.run
    total = len(run.sources) + len(run.unused) + len(record.unseen)
    validating = len(record.unseen) - len(run.tested)
    words = ["--hold-out", _share(len(run.tested), total), "--validate", _share(validating, total)]
    if run.unused:
        words += ["--train-on", str(len(run.sources))]
    division = Division(len(run.tested), validating, whole=bool(run.report))
    return words + _rules([run], division)


def _chosen_domains(records: Sequence[Record]) -> list[str]:
    """The names of the domains to test, validate and train on, unless each is left out once."""
    first = records[0]
    runs = [record.run for record in records]
    validating = [name for name in first.unseen if first.run.tested and name not in first.tests]
    targets = {"+".join(record.tests): None for record in records if _is_tested(record)}
    words = []
    if is_single_source(first) and len({run.sources for run in runs}) > 1:
        words = ["--single-source"]
    elif TARGETS in first.run.given and len(targets) < len(first.domains) - len(validating):
        words = ["--targets", ",".join(targets)]
        words += ["--sources", ",".join(first.run.sources)] if first.run.unused else []
    if validating:
        words += ["--validate-on", ",".join(validating)]
    tested = max(len(run.tested) for run in runs)
    division = Division(tested, len(validating), whole=bool(first.run.report))
    return words + _rules(runs, division)


def _is_tested(record: Record) -> bool:
    """Whether a record reports on its unseen domains; a twin does not."""
    return bool(record.run.tested) or len(record.unseen) == 1


def _share(count: int, total: int) -> str:
    shares = (f"{count / total:.{digits}g}" for digits in range(1, 9))
    return next(share for share in shares if round(float(share) * total) == count)


def _rules(runs: Sequence[Run], division: Division) -> list[str]:
    rules = {rule for run in runs for rule in run.rules}
    if runs[0].experts or rules == set(default_rules(division)):
        return []
    return ["--rules", ",".join(rule for rule in RULES if rule in rules)]


def _classes(runs: Sequence[Run]) -> list[str]:
    """The choice of classes, where it is not the default."""
    chosen = next((run.given["classes"] for run in runs if "classes" in run.given), None)
    if chosen is None and any(run.classes for run in runs) and not runs[0].data:
        chosen = "sources"
    return ["--classes", chosen] if chosen else []


def _settings(given: Mapping[str, Any], run: Run) -> list[str]:
    """The settings chosen by hand, as options."""
    words: list[str] = []
    for name, value in given.items():
        if name in ("classes", TARGETS) or (name == "domains" and run.tested):
            continue
        if name == "skip_broken":
            words.append("--skip-broken")
        elif name in ("base_steps", "expert_draws") and run.experts:
            words += [f"--{name.replace('_', '-')}", str(value)]
        elif name == "experts" and run.experts:
            words += ["--expert-method", str(value).replace("+", ",")]
        elif name in OPTION_SETTINGS:
            words += [f"--{name.replace('_', '-')}", name_without_path(str(value))]
        else:
            # Records keep the settings of an expert's method with a space instead of a dot.
            words += ["--set", f"{name.replace(' ', '.') if run.experts else name}={value}"]
    return words


def _threads(device: str) -> list[str]:
    """The number of threads, which changes the last digits of sums."""
    word = device.rpartition(", ")[2].partition(" ")[0]
    return ["--threads", word] if word.isdecimal() and word != "1" else []
