"""The picture of a benchmark's headline: a row for each method, a dot and a bar on one axis.

It shows differences from the reference with their intervals, or where there is none, means with
their standard errors.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from afield.reporting.axes import Axis, axis
from afield.reporting.comparison import REFERENCE, Comparison, comparisons
from afield.reporting.headline import points
from afield.reporting.results import BOUND, Benchmark

__all__ = ["Bar", "Forest", "forest"]


@dataclass(frozen=True)
class Bar:
    """A method: where its dot is and its bar ends (None where there is none), and it in words."""

    name: str
    at: float
    low: float | None
    high: float | None
    value: str
    range: str
    tone: str


@dataclass(frozen=True)
class Forest:
    """Rows on one axis; `zero` is where the reference lies, if there is one."""

    caption: str
    what: str
    unit: str
    axis: Axis
    rows: Sequence[Bar]
    zero: float | None = None


def forest(benchmark: Benchmark, frame: pd.DataFrame, rule: str, best: str) -> Forest | None:
    """The picture by one rule; None where no method has a number."""
    known = comparisons(benchmark, rule)
    if known:
        return _differences(known, best)
    own = frame[(frame["rule"] == rule) & (frame["domain"] == "mean")].dropna(subset="accuracy")
    own = own[~own["method"].str.startswith(BOUND)].sort_values("accuracy", ascending=False)
    return None if own.empty else _means(own, best)


def _differences(known: Sequence[Comparison], best: str) -> Forest:
    ends = [end for each in known for end in (each.difference, each.low, each.high)]
    across = axis([0.0, *(100 * end for end in ends)], log=False, sign=True)
    several = len({each.reference for each in known}) > 1
    against = f"{REFERENCE} with the same settings" if several else REFERENCE
    return Forest(
        caption=f"Accuracy on unseen domains over that of {against}, in percentage points; bars "
        "are 95 % intervals, and those that cross the line at 0 may be chance",
        what="difference",
        unit="points",
        axis=across,
        rows=[
            Bar(
                each.method,
                across.place(100 * each.difference),
                *_ends(across, each.low, each.high),
                points(each.difference),
                "" if math.isnan(each.low) else f"{points(each.low)} to {points(each.high)}",
                "first" if each.method == best else "",
            )
            for each in known
        ],
        zero=across.place(0.0),
    )


def _means(own: pd.DataFrame, best: str) -> Forest:
    rows = [
        (str(method), float(mean), float(error))
        for method, mean, error in zip(own["method"], own["accuracy"], own["stderr"], strict=True)
    ]
    ends = [mean + part for _, mean, error in rows for part in (0.0, -error, error)]
    across = axis([100 * end for end in ends], log=False)
    return Forest(
        caption="Mean accuracy on unseen domains, per cent, ± standard error over trials",
        what="accuracy",
        unit="per cent",
        axis=across,
        rows=[
            Bar(
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
