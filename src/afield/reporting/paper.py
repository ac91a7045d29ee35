"""The numbers of a paper beside ours: one line per part, row and column of a recipe.

Ours is a mean over trials ± its standard error. A mark says where ours is lower than the paper's
number by more than two standard errors of ours; with one trial there is no standard error, and no
mark. `afield recipe run` keeps the comparison in the store, in three forms:

    paper.csv    one line per number
    paper.md     the tables in Markdown
    paper.json   the tables as the report shows them
"""

import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, stdev

import pandas as pd
from pydantic import TypeAdapter, ValidationError

from afield import registry
from afield.reporting.results import Picks, Results, group_records
from afield.reporting.table import MISSING
from afield.runs.record import Record
from afield.runs.selection import Pick
from afield.runs.store import Store
from afield.studies.recipe import Numbers, Part, Recipe

log = logging.getLogger(__name__)

FIELDS = ["part", "rule", "row", "column", "paper", "ours", "stderr", "difference", "lower"]
FIELDS += ["trials"]
# How many standard errors ours must be lower by to be marked.
CLEARLY = 2.0
MARK = "▼"
# The column that is a mean over domains, or over datasets if there are several.
MEAN = "mean"

NUMBERS_FILE, TABLES_FILE, REPORT_FILE = "paper.csv", "paper.md", "paper.json"

Values = dict[int, float]
Estimate = tuple[float, float, int]
NOTHING: Estimate = (math.nan, math.nan, 0)


def compare_with_paper(recipe: Recipe, records: Sequence[Sequence[Record]]) -> pd.DataFrame:
    """Paper and ours in percent, for the records of every part of a recipe."""
    changes = recipe.changes
    measured = [
        _Measured(part, of_part, changes.data)
        for part, of_part in zip(recipe.parts, records, strict=True)
    ]
    rows: list[tuple[object, ...]] = []
    for part in measured:
        for numbers in _asked_for(part.part.numbers, changes.methods):
            rows += _lines(part.part.name, numbers, part.rule(numbers), part.estimate)
    for numbers in _asked_for(recipe.numbers, changes.methods):
        members = [part for part in measured if part.part.name.startswith(numbers.over)]
        if members and not changes.datasets:
            rule, estimate = members[0].rule(numbers), _mean_of(members)
            rows += _lines(numbers.over.rstrip(", "), numbers, rule, estimate)
    return pd.DataFrame(rows, columns=FIELDS)


def _asked_for(several: Sequence[Numbers], methods: Sequence[str]) -> list[Numbers]:
    """The numbers of the chosen rows; without a choice, of all rows, quoted ones too."""
    if not methods:
        return list(several)
    rows = [{name: each.rows[name] for name in each.rows if name in methods} for each in several]
    return [replace(each, rows=of) for each, of in zip(several, rows, strict=True)]


class _Measured:
    """The results of a part, from which estimates for its rows and columns are made."""

    def __init__(self, part: Part, records: Sequence[Record], replaced: Mapping[str, str]) -> None:
        self.part, self.replaced = part, replaced
        metric = str(part.benchmark.settings.get("metric", ""))
        self.results = group_records(records, metric) if records else []

    def rule(self, numbers: Numbers) -> str:
        return numbers.rule or (self.part.benchmark.rules or ("sources",))[0]

    def estimate(self, numbers: Numbers, row: str, column: str) -> Estimate:
        """Mean, standard error and number of trials."""
        datasets = [name for name in numbers.columns if name in registry.names("datasets")]
        if column == MEAN and datasets:
            return _mean_estimate([self.estimate(numbers, row, name) for name in datasets])
        if column == MEAN and len(self.results) < len(self.part.benchmark.dataset):
            return NOTHING
        if column == MEAN:
            estimates = [_estimate(self._values(r, numbers, row, MEAN)) for r in self.results]
            return _mean_estimate(estimates)
        found = self._results_of(column, numbers)
        return _estimate(self._values(found, numbers, row, column)) if found else NOTHING

    def _results_of(self, column: str, numbers: Numbers) -> Results | None:
        """The results of the dataset that a column names, or that has a domain of this name."""
        if column in registry.names("datasets"):
            return self._results_on(self.replaced.get(column, column))
        if numbers.value == "group" and len(self.results) == 1:
            return self.results[0]
        return next((each for each in self.results if column in each.domains), None)

    def _results_on(self, dataset: str) -> Results | None:
        """The results on a dataset of the part, which may be data in place of the paper's."""
        several = self.part.benchmark.dataset
        if dataset not in several:
            return None
        if len(several) == 1 and len(self.results) == 1:
            return self.results[0]
        # The report of a store does not get here, and starts without torch.
        from afield.data.lookup import find_dataset

        spec = find_dataset(dataset).spec
        return next((each for each in self.results if each.data == spec), None)

    def _values(self, results: Results, numbers: Numbers, row: str, column: str) -> Values:
        """The number of every trial."""
        picks = _picks(results, self.rule(numbers), row)
        values = _trial_values(results, picks, numbers.value, column)
        if not numbers.relative_to or row == numbers.relative_to:
            return values
        others = _picks(results, self.rule(numbers), numbers.relative_to)
        reference = _trial_values(results, others, numbers.value, column)
        return {trial: values[trial] - reference[trial] for trial in values if trial in reference}


def _picks(results: Results, rule: str, row: str) -> Picks:
    """The picks of the row with this method or merge."""
    for label, picks in results.picks(rule).items():
        if results.rows[label].method == row:
            return picks
    return {}


def _trial_values(results: Results, picks: Picks, value: str, column: str) -> Values:
    values: Values = {}
    for trial, by_domain in picks.items():
        complete = [pick for pick in by_domain.values() if pick is not None]
        if value == "group":
            found = [_group_accuracy(pick, column) for pick in complete]
        elif column in by_domain:
            found = [_value(by_domain[column], value)]
        elif results.many_held_out or len(complete) == len(by_domain):
            found = [_value(pick, value) for pick in complete]
        else:
            found = []
        known = [number for number in found if number is not None and not math.isnan(number)]
        if known:
            values[trial] = fmean(known)
    return values


def _value(pick: Pick | None, value: str) -> float | None:
    return None if pick is None else getattr(pick, value)


def _group_accuracy(pick: Pick, group: str) -> float | None:
    groups = pick.score.groups if pick.score else None
    if not groups or group not in groups:
        return None
    hits, size = groups[group]
    return hits / size


def _estimate(values: Values) -> Estimate:
    count = len(values)
    if not values:
        return NOTHING
    error = stdev(values.values()) / math.sqrt(count) if count > 1 else math.nan
    return fmean(values.values()), error, count


def _mean_estimate(estimates: Sequence[Estimate]) -> Estimate:
    """The mean over datasets; its standard error assumes that their runs are independent."""
    if not estimates or any(math.isnan(mean) for mean, _, _ in estimates):
        return NOTHING
    error = math.sqrt(math.fsum(e * e for _, e, _ in estimates)) / len(estimates)
    return fmean(m for m, _, _ in estimates), error, min(n for _, _, n in estimates)


def _mean_of(parts: Sequence[_Measured]) -> Callable[[Numbers, str, str], Estimate]:
    def estimate(numbers: Numbers, row: str, column: str) -> Estimate:
        return _mean_estimate([part.estimate(numbers, row, column) for part in parts])

    return estimate


def _lines(
    name: str,
    numbers: Numbers,
    rule: str,
    estimate: Callable[[Numbers, str, str], Estimate],
) -> Iterator[tuple[object, ...]]:
    title = ", ".join(filter(None, [name, numbers.title]))
    for row, values in numbers.rows.items():
        for column, paper in zip(numbers.columns, values, strict=True):
            ours, error, trials = estimate(numbers, row, column)
            ours, error = 100 * ours, 100 * error
            lower = not math.isnan(error) and ours < paper - CLEARLY * error
            yield title, rule, row, column, paper, ours, error, ours - paper, lower, trials


def paper_tables(frame: pd.DataFrame) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """The title, header and lines of one table per part and rule: ``paper → ours ± error``."""
    for (part, rule), cells in frame.groupby(["part", "rule"], sort=False):
        columns = list(dict.fromkeys(cells["column"]))
        lines = [
            [str(row), *(_cell(by_column.get(column)) for column in columns)]
            for row, by_column in _by_row(cells).items()
        ]
        title = f"{part}; rule {rule}" if part else f"rule {rule}"
        yield title, ["row", *columns], lines


def _by_row(cells: pd.DataFrame) -> dict[str, dict[str, Mapping[str, object]]]:
    rows: dict[str, dict[str, Mapping[str, object]]] = {}
    for cell in cells.to_dict("records"):
        rows.setdefault(str(cell["row"]), {})[str(cell["column"])] = {
            str(name): value for name, value in cell.items()
        }
    return rows


def _cell(cell: Mapping[str, object] | None) -> str:
    """A cell in words: the paper's number, ours, and the difference."""
    if cell is None:
        return ""
    names = ("paper", "ours", "stderr", "difference")
    paper, ours, error, difference = (float(str(cell[name])) for name in names)
    left = MISSING if math.isnan(paper) else f"{paper:g}"
    if math.isnan(ours):
        return f"{left} → {MISSING}"
    spread = "" if math.isnan(error) else f" ± {error:.1f}"
    mark = MARK if cell["lower"] else ""
    change = "" if math.isnan(difference) else f" ({difference:+.1f}{mark})"
    return f"{left} → {ours:.1f}{spread}{change}"


def paper_markdown(recipe: Recipe, frame: pd.DataFrame) -> str:
    """All tables of a recipe in Markdown, with the differences from the paper."""
    lines = [f"## {recipe.full_title}", "", paper_caption(recipe), ""]
    for title, header, rows in paper_tables(frame):
        table = [header, ["---"] * len(header), *rows]
        lines += [f"### {title}", "", *("| " + " | ".join(row) + " |" for row in table), ""]
    return "\n".join(lines)


def paper_caption(recipe: Recipe) -> str:
    """How to read a cell, and the differences from the paper, in one line."""
    differs = [f"Differs: {recipe.differs}."] if recipe.differs else []
    changes = recipe.changes.describe()
    differs += [f"Changed: {changes}."] if changes else []
    reading = f"Paper → ours ± standard error (difference; {MARK}: lower by more than two of them)."
    return " ".join([reading, *differs])


@dataclass(frozen=True)
class KeptComparison:
    """The tables of a recipe as a store keeps them: a title, a header and lines for each."""

    title: str
    caption: str
    tables: tuple[tuple[str, tuple[str, ...], tuple[tuple[str, ...], ...]], ...]


_ADAPTER = TypeAdapter(KeptComparison)


def keep_comparison(store: Store, recipe: Recipe, frame: pd.DataFrame) -> None:
    """Keep the paper's numbers and ours in the store."""
    tables = tuple(
        (title, tuple(header), tuple(map(tuple, rows)))
        for title, header, rows in paper_tables(frame)
    )
    kept = KeptComparison(recipe.full_title, paper_caption(recipe), tables)
    store.put_file(NUMBERS_FILE, frame.to_csv(index=False).encode())
    store.put_file(TABLES_FILE, paper_markdown(recipe, frame).encode())
    store.put_file(REPORT_FILE, json.dumps(asdict(kept), ensure_ascii=False).encode())


def kept_comparisons(roots: Sequence[Path]) -> list[KeptComparison]:
    """The comparisons in these stores; a broken file is left out and logged."""
    found = []
    for path in (root / REPORT_FILE for root in roots):
        if path.is_file():
            try:
                found.append(_ADAPTER.validate_json(path.read_bytes()))
            except (OSError, ValidationError):
                log.warning("%s: cannot be read; run `afield recipe run` again", path)
    return found
