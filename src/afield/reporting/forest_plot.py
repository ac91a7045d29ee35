"""The plot below the headline: a row for each method, with a dot and a bar on one axis.

It shows differences from the reference with their corrected intervals. Without a reference, it
shows means with their standard errors.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from afield.reporting.axes import Axis, numeric_axis
from afield.reporting.headline import format_points
from afield.reporting.results import UPPER_BOUND
from afield.reporting.statistics.comparison import REFERENCE, Comparison

__all__ = ["ForestPlot", "ForestRow", "build_forest_plot"]


@dataclass(frozen=True)
class ForestRow:
    """A method: the position of its dot, the ends of its bar (None: no bar), and both in words."""

    name: str
    at: float
    low: float | None
    high: float | None
    value: str
    range: str
    tone: str


@dataclass(frozen=True)
class ForestPlot:
    """Rows on one axis; `zero` is the position of the reference, if there is one."""

    caption: str
    quantity: str
    unit: str
    axis: Axis
    rows: Sequence[ForestRow]
    zero: float | None = None


def build_forest_plot(
    frame: pd.DataFrame, rule: str, comparisons: Sequence[Comparison], best: str
) -> ForestPlot | None:
    """The plot of one rule; None if no method has a mean.

    Parameters
    ----------
    frame
        The table of the results, from `tabulate`.
    rule
        The selection rule that is shown.
    comparisons
        The comparisons under this rule.
    best
        The method to highlight.
    """
    if comparisons:
        return _differences(comparisons, best)
    means = frame[(frame["rule"] == rule) & (frame["domain"] == "mean")].dropna(subset="accuracy")
    fair = means[~means["method"].str.startswith(UPPER_BOUND)]
    return None if fair.empty else _means(fair.sort_values("accuracy", ascending=False), best)


def _differences(comparisons: Sequence[Comparison], best: str) -> ForestPlot:
    intervals = [each.interval() for each in comparisons]
    ends = [each.difference for each in comparisons] + [end for ends in intervals for end in ends]
    axis = numeric_axis([0.0, *(100 * end for end in ends)], log=False, sign=True)
    several = len({each.reference for each in comparisons}) > 1
    against = f"{REFERENCE} with the same settings" if several else REFERENCE
    rivals = comparisons[0].rivals
    correction = f", corrected for {rivals} comparisons" * (rivals > 1)
    return ForestPlot(
        caption=f"Accuracy on unseen domains minus that of {against}, in percentage points; bars "
        f"are 95 % intervals{correction}, and a difference whose bar crosses 0 may be chance",
        quantity="difference",
        unit="points",
        axis=axis,
        rows=[
            ForestRow(
                each.method,
                axis.to_percent(100 * each.difference),
                *_ends(axis, low, high),
                format_points(each.difference),
                "" if math.isnan(low) else f"{format_points(low)} to {format_points(high)}",
                "first" if each.method == best else "",
            )
            for each, (low, high) in zip(comparisons, intervals, strict=True)
        ],
        zero=axis.to_percent(0.0),
    )


def _means(means: pd.DataFrame, best: str) -> ForestPlot:
    rows = [
        (str(method), float(mean), float(error))
        for method, mean, error in means[["method", "accuracy", "stderr"]].itertuples(index=False)
    ]
    ends = [mean + shift for _, mean, error in rows for shift in (0.0, -error, error)]
    axis = numeric_axis([100 * end for end in ends], log=False)
    return ForestPlot(
        caption="Mean accuracy on unseen domains in percent, ± standard error over trials",
        quantity="accuracy",
        unit="percent",
        axis=axis,
        rows=[
            ForestRow(
                method,
                axis.to_percent(100 * mean),
                *_ends(axis, mean - error, mean + error),
                f"{100 * mean:.1f}",
                "" if math.isnan(error) else f"±{100 * error:.1f}",
                "first" if method == best else "",
            )
            for method, mean, error in rows
        ],
    )


def _ends(axis: Axis, low: float, high: float) -> tuple[float | None, float | None]:
    if math.isnan(low):
        return None, None
    return axis.to_percent(100 * low), axis.to_percent(100 * high)
