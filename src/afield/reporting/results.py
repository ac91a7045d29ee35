"""Records as benchmarks: datasets, the rows that methods are, and what every rule picks for them.

What was trained only to be merged (bases and experts) is no row of its own.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from afield.experiments.record import Record, Run
from afield.experiments.selection import RULES, Pick

__all__ = [
    "UPPER_BOUND",
    "Picks",
    "Results",
    "chosen_settings",
    "common_settings",
    "group_records",
    "row_label",
]

# It has seen the target: a yardstick, not to be marked as best.
UPPER_BOUND = "target_expert"

# What was picked for each trial and unseen domain, if anything could be.
Picks = dict[int, dict[str, Pick | None]]


@dataclass(frozen=True)
class Results:
    """The records of one dataset, by the label of their row; `many` domains are held out, or each.

    `domains` are those that are tested on; the `title` says of the `name` how many are held out.
    """

    name: str
    title: str
    domains: Sequence[str]
    methods: Mapping[str, Sequence[Record]]
    many: bool
    _known: dict[str, dict[str, Picks]] = field(default_factory=dict, repr=False, compare=False)

    def picks(self, rule: str) -> dict[str, Picks]:
        """What the rule picks for every method, trial and domain, where it can."""
        if rule not in self._known:
            self._known[rule] = {m: self._picked(rule, own) for m, own in self.methods.items()}
        return self._known[rule]

    def _picked(self, rule: str, records: Sequence[Record]) -> Picks:
        found: Picks = {}
        for trial in sorted({record.run.trial for record in records}):
            of_trial = [record for record in records if record.run.trial == trial]
            found[trial] = {domain: RULES[rule].pick(of_trial, domain) for domain in self.domains}
        return found


def group_records(records: Iterable[Record]) -> list[Results]:
    """One for each dataset, and for each way to hold out many domains of it."""
    datasets: dict[str, list[Record]] = {}
    for record in records:
        if record.run.role not in ("base", "expert"):
            known = f"{record.run.data or record.run.dataset}{_held_out(record)}"
            datasets.setdefault(known, []).append(record)
    names = _names([of_dataset[0] for of_dataset in datasets.values()])
    return [
        Results(
            name=name,
            title=name + _held_out(own[0]),
            domains=_targets(own),
            methods=_by_label(own),
            many=bool(own[0].run.tested),
        )
        for name, own in zip(names, datasets.values(), strict=True)
    ]


def row_label(run: Run, *, exclude: Iterable[str] = ()) -> str:
    """The row of a run: its method, what is deployed, and what was chosen by hand."""
    words = [run.method] if run.average == "last" else [run.method, f"+ {run.average}"]
    for name, value in chosen_settings(run).items():
        if name not in exclude:
            short = name.removeprefix(f"{run.method}.").removeprefix(f"{run.average}.")
            words.append(f"{short}={value}")
    return " ".join(words)


def common_settings(runs: Iterable[Run]) -> set[str]:
    """What is alike in all runs: it is not repeated in every label."""
    chosen = [{(name, str(value)) for name, value in chosen_settings(run).items()} for run in runs]
    return {name for name, _ in set.intersection(*chosen)}


def chosen_settings(run: Run) -> dict[str, Any]:
    """What no draw changes: records that differ in it are different rows."""
    known = {"backbone": run.backbone, "steps": run.steps, **run.given}
    if "weights" in known and run.start:
        known["weights"] = f"{Path(run.weights).name} [{run.start[:6]}]"
    return known


def _held_out(record: Record) -> str:
    """How many domains are held out to test and to validate on, in words."""
    if not record.run.tested:
        return ""
    tested, validating = len(record.run.tested), len(record.unseen) - len(record.run.tested)
    told = f", {tested} domain{'s' * (tested > 1)} held out"
    return told + f", {validating} validating" * bool(validating)


def _names(records: Sequence[Record]) -> list[str]:
    """Names of datasets; of own data the file's, with path and state where two have the same."""
    runs = [record.run for record in records]
    names = [Path(run.dataset).name.removesuffix(".npz") for run in runs]
    states = {(name, run.data) for name, run in zip(names, runs, strict=True)}
    twice = {name for name in names if sum(name == known for known, _ in states) > 1}
    return [
        f"{run.dataset} [{run.data[:6]}]" if run.data and name in twice else name
        for name, run in zip(names, runs, strict=True)
    ]


def _targets(records: Sequence[Record]) -> list[str]:
    """All domains, if one was left out alone: where one is missing, nobody shall overlook it."""
    if records[0].run.tested:
        return list(dict.fromkeys(name for record in records for name in record.run.tested))
    alone = any(len(record.unseen) == 1 for record in records)
    return list(records[0].domains) if alone else []


def _by_label(records: Sequence[Record]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    common = common_settings(record.run for record in records)
    for record in records:
        found.setdefault(row_label(record.run, exclude=common), []).append(record)
    return found
