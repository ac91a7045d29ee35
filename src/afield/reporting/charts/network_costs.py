"""Accuracy against cost: what a model of each row multiplies for one sample, and how good it is.

The cost is that of prediction, with the frozen network in front of a model that is trained on its
features. Merged and adapted models cost as much as one model; an ensemble costs all its members.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from afield.reporting.charts.axes import Mark, numeric_axis
from afield.reporting.charts.draws import Panel, Point
from afield.reporting.results import Results
from afield.reporting.table import format_number
from afield.runs.record import Record
from afield.runs.run import name_without_path

BILLION, MILLION = 1e9, 1e6


@dataclass(frozen=True)
class NetworkCost:
    """A row: its network, parameters and multiplications (0 means unknown), and mean accuracy."""

    method: Mark
    network: str
    parameters: int
    macs: int
    accuracy: float

    @property
    def millions(self) -> str:
        """Millions of parameters."""
        return f"{self.parameters / MILLION:,.2f}"

    @property
    def gmacs(self) -> str:
        """Billions of multiplications."""
        return f"{self.macs / BILLION:.3g}"

    @property
    def percent(self) -> str:
        """The accuracy in percent."""
        return format_number(self.accuracy)


@dataclass(frozen=True)
class NetworkCosts:
    """The picture, and its numbers from the cheapest row to the most expensive one.

    `unknown` are the rows whose records do not say what they cost.
    """

    panel: Panel
    rows: Sequence[NetworkCost]
    unknown: Sequence[Mark]


def build_network_costs(
    results: Results, frame: pd.DataFrame, rule: str, marks: Mapping[str, Mark]
) -> NetworkCosts | None:
    """Accuracy against cost under a rule; None if no two rows differ in their cost.

    `frame` is the table of all rules.
    """
    of_rule = frame[(frame["rule"] == rule) & (frame["domain"] == "mean")]
    means = dict(zip(of_rule["method"], of_rule["accuracy"], strict=True))
    shown = {name: means[name] for name in marks if not math.isnan(means.get(name, math.nan))}
    rows = [
        NetworkCost(
            method=marks[name],
            network=name_without_path(results.rows[name].network),
            parameters=_largest(results.methods[name], "parameters"),
            macs=_largest(results.methods[name], "macs"),
            accuracy=mean,
        )
        for name, mean in shown.items()
        if not marks[name].bound
    ]
    known = sorted((row for row in rows if row.macs), key=lambda row: (row.macs, -row.accuracy))
    if len({row.macs for row in known}) < 2:
        return None
    return NetworkCosts(_panel(known), known, [row.method for row in rows if not row.macs])


def _largest(records: Sequence[Record], name: str) -> int:
    """The cost of a row; networks of one row may differ in their number of classes."""
    return max(int(getattr(record, name)) for record in records)


def _panel(rows: Sequence[NetworkCost]) -> Panel:
    x = numeric_axis([row.macs / BILLION for row in rows], log=True)
    y = numeric_axis([100 * row.accuracy for row in rows], log=False)
    points = [
        Point(
            x.to_percent(row.macs / BILLION),
            y.to_percent(100 * row.accuracy),
            row.method.name,
            f"{row.method.name}: {row.percent} %, {row.gmacs} GMACs, {row.millions} M parameters",
            is_default=False,
        )
        for row in rows
    ]
    return Panel("Accuracy against cost", x, y, points)
