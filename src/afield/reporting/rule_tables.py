"""The table of one selection rule as the page shows it, with its comparisons."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from afield.experiments.selection import RULES
from afield.reporting.axes import FAMILIES, Mark
from afield.reporting.statistics.comparison import Comparison
from afield.reporting.table import (
    Column,
    display_order,
    find_column,
    format_number,
    table_caption,
)

__all__ = ["Cell", "ComparisonRow", "RuleTable", "TableRow", "build_rule_table"]

# The words for a verdict, and the class that colors them.
VERDICTS = {
    "better": ("better", "good"),
    "worse": ("worse", "bad"),
    "unclear": ("may be chance", ""),
    "level": ("equal", ""),
    "too few": ("cannot tell", ""),
}


@dataclass(frozen=True)
class Cell:
    """A number as it is sorted (`value`) and shown, its standard error, and whether it is best."""

    value: str = ""
    number: str = format_number(math.nan)
    stderr: str = ""
    best: bool = False

    @property
    def missing(self) -> bool:
        """Whether there is no number."""
        return not self.value


@dataclass(frozen=True)
class TableRow:
    """A method and its numbers, in the order of the columns."""

    method: Mark
    cells: Sequence[Cell]


@dataclass(frozen=True)
class ComparisonRow:
    """A comparison with its verdict in words and the class that colors it."""

    method: Mark
    comparison: Comparison
    verdict: str
    tone: str

    @property
    def intervals(self) -> tuple[float, ...]:
        """The ends of the uncorrected intervals: on these domains, and over domains like these."""
        alone = self.comparison.interval(corrected=False)
        return *alone, *self.comparison.interval(corrected=False, new_domain=True)


@dataclass(frozen=True)
class RuleTable:
    """All numbers that one rule gives; `columns` by name, None for the column of a domain."""

    rule: str
    description: str
    oracle: bool
    caption: str
    columns: Mapping[str, Column | None]
    rows: Sequence[TableRow]
    comparisons: Sequence[ComparisonRow]

    @property
    def groups(self) -> dict[str, list[TableRow]]:
        """The rows of every family that has any."""
        by_family = {
            name: [row for row in self.rows if row.method.family == name] for name in FAMILIES
        }
        return {name: rows for name, rows in by_family.items() if rows}

    @property
    def incomplete(self) -> bool:
        """Whether a number is missing that every complete run has."""
        columns = enumerate(self.columns.values())
        required = [i for i, column in columns if column is None or not column.optional]
        return any(row.cells[i].missing for row in self.rows for i in required)


def build_rule_table(
    rule: str,
    frame: pd.DataFrame,
    comparisons: Sequence[Comparison],
    marks: Mapping[str, Mark],
    possible_best: Sequence[str] = (),
) -> RuleTable:
    """The table of a rule, the best mean first.

    Parameters
    ----------
    rule
        The selection rule.
    frame
        What `tabulate` made of all rules.
    comparisons
        The comparisons under this rule.
    marks
        The marks of all methods.
    possible_best
        The methods that may be the best one; their means are highlighted.
    """
    table = frame[frame["rule"] == rule]
    names = display_order(dict.fromkeys(table["domain"]))
    rows = [
        TableRow(marks[str(method)], _cells(cells, names, best=method in possible_best))
        for method, cells in table.groupby("method", sort=False)
    ]
    means = table[table["domain"] == "mean"].set_index("method")["accuracy"].fillna(-math.inf)
    return RuleTable(
        rule=rule,
        description=RULES[rule].description,
        oracle=RULES[rule].is_oracle,
        caption=table_caption(table),
        columns={name: find_column(name) for name in names},
        rows=sorted(rows, key=lambda row: -means[row.method.name]),
        comparisons=[
            ComparisonRow(marks[each.method], each, *VERDICTS[each.verdict]) for each in comparisons
        ],
    )


def _cells(frame: pd.DataFrame, names: Sequence[str], *, best: bool) -> list[Cell]:
    columns = zip(frame["domain"], frame["accuracy"], frame["stderr"], strict=True)
    numbers = {str(name): (float(accuracy), float(stderr)) for name, accuracy, stderr in columns}
    unknown = (math.nan, math.nan)
    return [_cell(*numbers.get(name, unknown), best=best and name == "mean") for name in names]


def _cell(accuracy: float, stderr: float, *, best: bool) -> Cell:
    if math.isnan(accuracy):
        return Cell()
    error = "" if math.isnan(stderr) else format_number(stderr)
    return Cell(f"{accuracy:.6f}", format_number(accuracy), error, best)
