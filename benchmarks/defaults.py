"""How the defaults were chosen: candidates for each kind of data, with every domain left out.

    python benchmarks/defaults.py tables --packages FOLDER --store runs/defaults [--trials 2]
    python benchmarks/defaults.py tables --records docs/records/defaults_tables.jsonl.gz

The kinds are tables, images, sounds and texts. Every candidate is `erm` with other settings; the
first one has the defaults. All that were tried are listed in `CANDIDATES`. A run reports on
all samples of the domain that it leaves out, at the checkpoint with the best accuracy on the
validation splits of its sources.

The table has the mean over left-out domains and trials for each dataset. The last column is the
mean over datasets of the difference to the defaults, with a 95 % interval of Student's t over the
left-out domains of all datasets. A candidate is chosen by this column, so no single target and no
single dataset decides. With --records, the table is made from an archive, without runs.

`defaults_data.py` says which packages are needed and how to get them.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from defaults_data import TABLES, emoji_file, table_file
from scipy import stats

import afield
from afield.data.domains import data_root
from afield.data.modalities.audio import AUDIO_TRAINING
from afield.data.modalities.table import Table
from afield.runs.record import Record
from afield.runs.selection import RULES
from afield.runs.store import open_store


@dataclass(frozen=True)
class Candidate:
    """Settings that could be the defaults of a kind of data."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)


MOMENTS = {"columns": "sources"}
PLAIN = {"optimizer": "adam", "weight_decay": 0.0}
CANDIDATES = {
    "tables": (
        Candidate("the defaults"),
        Candidate(
            "before", {**MOMENTS, **PLAIN, "backbone": "small:mlp", "steps": 600, "every": 12}
        ),
        Candidate("mean and deviation", MOMENTS),
        Candidate("no dropout", {"backbone": "small:mlp"}),
        Candidate("weight decay of 0.01", {"weight_decay": 0.01}),
        Candidate("5 checkpoints, less decay", {"every": 60, "weight_decay": 0.01}),
        Candidate("linear", {"backbone": "linear", "lr": 0.01}),
    ),
    "images": (
        Candidate("the defaults"),
        Candidate("before: no augmentation", {"augment": "none"}),
        Candidate("full augmentation", {"augment": "full"}),
    ),
    "sounds": (
        Candidate("the defaults"),
        Candidate("before", {"backbone": "small:cnn", "domains_per_step": 0}),
        Candidate("small:cnn, four domains", {"backbone": "small:cnn"}),
        Candidate("all domains in a step", {"domains_per_step": 0}),
        Candidate("300 steps", {"steps": 300}),
    ),
    "texts": (
        Candidate("the defaults"),
        Candidate("before", {"backbone": "small:text", "steps": 300, "lr": 0.001}),
        Candidate("lr 0.005", {"lr": 0.005}),
        Candidate("lr 0.05", {"lr": 0.05}),
        Candidate("300 steps", {"steps": 300}),
    ),
}
# Defaults that candidates replace, as datasets and networks declare them.
USUAL: dict[str, Mapping[str, Any]] = {
    "tables": vars(Table.training),
    "images": {"augment": "light"},
    "sounds": vars(AUDIO_TRAINING),
    "texts": {"backbone": "bag:", "lr": 0.02, "steps": 150},
}
# Columns of the tables that are not called label and domain.
COLUMNS = {"heart": {"label": "diagnosis", "domain": "hospital"}, "reviews": {"text": "text"}}
# Texts are many: so many of each class and domain are trained on.
LIMIT = {"reviews": 200}


def datasets(kind: str, packages: Path, made: Path) -> dict[str, str]:
    """The datasets of a kind, by a short name."""
    if kind == "tables":
        files = {name: str(table_file(name, packages, made)) for name in TABLES}
        return {"heart": str(data_root() / "heart/heart.csv"), **files}
    if kind == "images":
        return {"rotated_digits": "rotated_digits", "emoji": str(emoji_file(packages, made))}
    if kind == "sounds":
        return {"spoken_digits": "spoken_digits"}
    return {"reviews": str(data_root() / "reviews/reviews.csv.gz")}


def short_name(record: Record) -> str:
    """The name of a record's dataset, without the suffixes of files."""
    return record.run.data_name.partition(".")[0]


def run(candidate: Candidate, name: str, dataset: str, trials: int, store: Path) -> list[Record]:
    """The records of a candidate on a dataset."""
    settings = {**candidate.settings, "report": "whole"}
    settings |= {"limit": LIMIT[name]} if name in LIMIT else {}
    options = {**COLUMNS.get(name, {}), "rules": "sources", "trials": trials, "store": str(store)}
    return afield.bench(dataset, ["erm"], **options, settings=settings)


Results = dict[tuple[str, str], dict[tuple[str, int], float]]


def accuracies(records: Iterable[Record]) -> dict[tuple[str, int], float]:
    """The accuracy by left-out domain and trial."""
    found = {}
    for record in records:
        (target,) = record.unseen
        pick = RULES["sources"].pick([record], target)
        if pick is not None:
            found[target, record.run.trial] = pick.accuracy
    return found


def group_records(kind: str, records: Iterable[Record]) -> Results:
    """Accuracies by candidate and dataset."""
    names = sorted({name for candidate in CANDIDATES[kind] for name in candidate.settings})
    grouped = defaultdict(list)
    for record in records:
        form = _form({name: getattr(record.run, name) for name in names})
        grouped[form, short_name(record)].append(record)
    results = {}
    for candidate in CANDIDATES[kind]:
        settings = {name: USUAL[kind][name] for name in names} | dict(candidate.settings)
        for (form, dataset), group in grouped.items():
            if form == _form(settings):
                results[candidate.name, dataset] = accuracies(group)
    return results


def _form(settings: Mapping[str, Any]) -> str:
    """Settings as records have them, where two values mean the same."""
    same = {("optimizer", "adam"): "", ("augment", "none"): "", ("columns", ""): "robust"}
    return str([(name, same.get((name, value), value)) for name, value in sorted(settings.items())])


def gain(results: Results, name: str, reference: str) -> tuple[float, float]:
    """Mean difference to the reference and half of its 95 % interval, in points.

    A left-out domain counts once, with the mean over its trials, and every dataset counts alike.
    """
    names = sorted({dataset for candidate, dataset in results if candidate == name})
    means, variances, degrees = [], [], 0
    for dataset in names:
        ours, theirs = results[name, dataset], results[reference, dataset]
        by_target = defaultdict(list)
        for key in ours.keys() & theirs.keys():
            by_target[key[0]].append(100 * (ours[key] - theirs[key]))
        values = np.array([np.mean(each) for each in by_target.values()])
        means.append(values.mean())
        variances.append(values.var(ddof=1) / len(values))
        degrees += len(values) - 1
    error = float(np.sqrt(np.sum(variances)) / len(names))
    return float(np.mean(means)), float(stats.t.ppf(0.975, degrees)) * error


def show(kind: str, results: Results) -> None:
    """Print the table."""
    names = list(dict.fromkeys(dataset for _, dataset in results))
    done = [c.name for c in CANDIDATES[kind] if all((c.name, n) in results for n in names)]
    print(f"| {kind} | {' | '.join(names)} | difference |")
    print("| --- " * (len(names) + 2) + "|")
    for name in done:
        cells = [f"{100 * np.mean(list(results[name, n].values())):.1f}" for n in names]
        difference = "–"
        if name != done[0]:
            difference = "{:+.1f} ± {:.1f}".format(*gain(results, name, done[0]))
        print(f"| {name} | {' | '.join(cells)} | {difference} |")


def is_chosen(name: str, names: str | None) -> bool:
    """Whether a name is in a list on the command line; without a list, all names are."""
    return names is None or name in names.split(";")


def main() -> None:
    """Do the runs that are missing, or read an archive, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("kind", choices=CANDIDATES)
    parser.add_argument("--packages", type=Path, default=Path())
    parser.add_argument("--store", type=Path, default=Path("runs/defaults"))
    parser.add_argument("--records", type=Path, help="an archive to read instead of doing runs")
    parser.add_argument("--trials", type=int, default=2)
    parser.add_argument("--candidates", help="names of some candidates, separated by ';'")
    parser.add_argument("--datasets", help="names of some datasets, separated by ';'")
    asked = parser.parse_args()
    if asked.records is None:
        files = datasets(asked.kind, asked.packages, asked.store / "made")
        for candidate in CANDIDATES[asked.kind]:
            for name, dataset in files.items():
                if is_chosen(candidate.name, asked.candidates) and is_chosen(name, asked.datasets):
                    run(candidate, name, dataset, asked.trials, asked.store / asked.kind)
    source = asked.records or asked.store / asked.kind
    show(asked.kind, group_records(asked.kind, open_store(source)))


if __name__ == "__main__":
    main()
