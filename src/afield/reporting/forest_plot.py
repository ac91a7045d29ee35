"""The picture of a benchmark's headline: a row for each method, a dot and a bar on one axis.

It shows differences from the reference with their intervals, or where there is none, means with
their standard errors.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from afield.reporting.axes import Axis, numeric_axis
from afield.reporting.comparison import REFERENCE, Comparison, comparisons
from afield.reporting.headline import format_points
from afield.reporting.results import UPPER_BOUND, Results

__all__ = ["ForestPlot", "ForestRow", "build_forest_plot"]


@dataclass(frozen=True)
class ForestRow:
    """A method: where its dot is and its bar ends (None where there is none), and it in words."""

    name: str
    at: float
    low: float | None
    high: float | None
    value: str
    range: str
    tone: str


@dataclass(frozen=True)
class ForestPlot:
    """Rows on one axis; `zero` is where the reference lies, if there is one."""

    caption: str
    what: str
    unit: str
    axis: Axis
    rows: Sequence[ForestRow]
    zero: float | None = None


def build_forest_plot(
    results: Results, frame: pd.DataFrame, rule: str, best: str
) -> ForestPlot | None:
    """The picture by one rule; None where no method has a number."""
    known = comparisons(results, rule)
    if known:
        return _differences(known, best)
    own = frame[(frame["rule"] == rule) & (frame["domain"] == "mean")].dropna(subset="accuracy")
    own = own[~own["method"].str.startswith(UPPER_BOUND)].sort_values("accuracy", ascending=False)
    return None if own.empty else _means(own, best)


def _differences(known: Sequence[Comparison], best: str) -> ForestPlot:
    ends = [end for each in known for end in (each.difference, each.low, each.high)]
    across = numeric_axis([0.0, *(100 * end for end in ends)], log=False, sign=True)
    several = len({each.reference for each in known}) > 1
    against = f"{REFERENCE} with the same settings" if several else REFERENCE
    return ForestPlot(
        caption=f"Accuracy on unseen domains over that of {against}, in percentage points; bars "
        "are 95 % intervals, and those that cross the line at 0 may be chance",
        what="difference",
        unit="points",
        axis=across,
        rows=[
            ForestRow(
                each.method,
                across.place(100 * each.difference),
                *_ends(across, each.low, each.high),
                format_points(each.difference),
                ""
                if math.isnan(each.low)
                else f"{format_points(each.low)} to {format_points(each.high)}",
                "first" if each.method == best else "",
            )
            for each in known
        ],
        zero=across.place(0.0),
    )


def _means(own: pd.DataFrame, best: str) -> ForestPlot:
    rows = [
        (str(method), float(mean), float(error))
        for method, mean, error in zip(own["method"], own["accuracy"], own["stderr"], strict=True)
    ]
    ends = [mean + part for _, mean, error in rows for part in (0.0, -error, error)]
    across = numeric_axis([100 * end for end in ends], log=False)
    return ForestPlot(
        caption="Mean accuracy on unseen domains, per cent, ± standard error over trials",
        what="accuracy",
        unit="per cent",
        axis=across,
        rows=[
            ForestRow(
                method,
                across.place(100 * mean),
                *_ends(across, mean - error, mean + error),
                f"{100 * mean:.1f}",
                "" if math.isnan(error) else f"±{100 * error:.1f}",
                "first" if method == best else "",
            )
            for method, mean, error in rows
        ],
    )


def _ends(across: Axis, low: float, high: float) -> tuple[float | None, float | None]:
    if math.isnan(low):
        return None, None
    return across.place(100 * low), across.place(100 * high)
