"""The plot below the headline: a row for each method, with a dot and a bar on one axis.

It shows differences from the reference with their corrected intervals. Without a reference, it
shows means with their standard errors.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import pandas as pd

from afield.reporting.charts.axes import Axis, Mark, numeric_axis
from afield.reporting.comparison import Comparison, accuracies, references
from afield.reporting.results import Results
from afield.reporting.sentences import describe_correction, format_points
from afield.runs.row import REFERENCE


@dataclass(frozen=True)
class Gain:
    """The mean difference on one domain (NaN: unknown), and its tone.

    The tone is "good" or "bad" if the difference is more than two standard errors from 0.
    """

    difference: float
    tone: str = ""


@dataclass(frozen=True)
class GainRow:
    """A method and its gains, in the order of the domains."""

    method: Mark
    gains: Sequence[Gain]


@dataclass(frozen=True)
class GainTable:
    """The gains of all methods that have a reference."""

    domains: Sequence[str]
    rows: Sequence[GainRow]


def gains_by_domain(results: Results, rule: str, marks: Mapping[str, Mark]) -> GainTable | None:
    """The gains under a rule on the same trials; None where domains have no columns."""
    if results.many_held_out:
        return None
    measured, against = accuracies(results, rule), references(results)
    rows = []
    for name, mark in marks.items():
        if name in against and name in measured and against[name] in measured:
            one, other = measured[name], measured[against[name]]
            shared = {key: one[key] - other[key] for key in one if key in other}
            by_domain = [
                [value for (_, domain), value in shared.items() if domain == each]
                for each in results.domains
            ]
            rows.append(GainRow(mark, [_gain(values) for values in by_domain]))
    return GainTable(results.domains, rows) if rows else None


def _gain(differences: Sequence[float]) -> Gain:
    if not differences:
        return Gain(math.nan)
    mean = float(np.mean(differences))
    if len(differences) < 2:
        return Gain(mean)
    stderr = float(np.std(differences, ddof=1)) / math.sqrt(len(differences))
    clear = abs(mean) > 2 * stderr
    return Gain(mean, ("good" if mean > 0 else "bad") if clear and round(mean, 3) else "")


# The axis reaches this many typical half widths of intervals.
REACH = 4
# Outliers are clipped if the axis would otherwise be longer by this factor.
MIN_CLIPPING_GAIN = 1.5


@dataclass(frozen=True)
class ForestRow:
    """A method: the position of its dot, the ends of its bar (None: no bar), and both in words.

    `clipped` is "low" or "high" if the dot lies beyond that end of the axis: an arrow marks it. A
    bar that reaches 0 or 100 goes on beyond the axis, and an arrow marks that end.
    """

    name: str
    at: float
    low: float | None
    high: float | None
    value: str
    range: str
    tone: str
    clipped: str = ""


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
    """The plot of one rule, with the `best` method highlighted; None if no method has a mean."""
    if comparisons:
        return _differences(comparisons, best)
    means = frame[(frame["rule"] == rule) & (frame["domain"] == "mean")].dropna(subset="accuracy")
    fair = means[means["sees"] != "labels"]
    return None if fair.empty else _means(fair.sort_values("accuracy", ascending=False), best)


def _differences(comparisons: Sequence[Comparison], best: str) -> ForestPlot:
    intervals = [each.interval() for each in comparisons]
    axis = numeric_axis([100 * end for end in _window(comparisons)], log=False, sign=True)
    several = len({each.reference for each in comparisons}) > 1
    against = f"{REFERENCE} with the same settings" if several else REFERENCE
    return ForestPlot(
        caption=f"Accuracy on unseen domains minus that of {against}, in percentage points; "
        + _describe_bars(
            comparisons[0].rivals, known=any(math.isfinite(low) for low, _ in intervals)
        ),
        quantity="difference",
        unit="points",
        axis=axis,
        rows=[
            ForestRow(
                each.method,
                _clamp(axis.to_percent(100 * each.difference)),
                *_ends(axis, low, high),
                format_points(each.difference),
                "" if math.isnan(low) else f"{format_points(low)} to {format_points(high)}",
                "first" if each.method == best else "",
                _side(axis, 100 * each.difference),
            )
            for each, (low, high) in zip(comparisons, intervals, strict=True)
        ],
        zero=axis.to_percent(0.0),
    )


def _describe_bars(rivals: int, *, known: bool) -> str:
    if not known:
        return "any of them may be chance, because there are too few results for intervals"
    corrected = f"bars are 95 % intervals{describe_correction(rivals)}"
    return f"{corrected}, and a difference whose bar crosses 0 may be chance"


def _window(comparisons: Sequence[Comparison]) -> list[float]:
    """The ends of the axis: outliers do not squeeze what is near 0.

    The axis reaches four typical half widths of intervals, and covers the greatest difference with
    its interval. Nothing is clipped if that would gain little.
    """
    intervals = [each.interval() for each in comparisons]
    differences = [each.difference for each in comparisons]
    ends = [0.0, *differences, *(end for pair in intervals for end in pair)]
    finite = [end for end in ends if math.isfinite(end)]
    widths = [(high - low) / 2 for low, high in intervals if math.isfinite(high - low)]
    reach = REACH * median(widths or [abs(each) for each in differences])
    top = max(range(len(differences)), key=lambda index: differences[index])
    shown = [0.0, differences[top], *(end for end in intervals[top] if math.isfinite(end))]
    low = min(max(min(finite), -reach), *shown)
    high = max(min(max(finite), reach), *shown)
    full = min(finite), max(finite)
    return [*full] if full[1] - full[0] <= MIN_CLIPPING_GAIN * (high - low) else [low, high]


def _side(axis: Axis, value: float) -> str:
    """The end of the axis beyond which a value lies; empty if it is on the axis."""
    return "low" if value < axis.low else "high" if value > axis.high else ""


def _clamp(position: float) -> float:
    return min(100.0, max(0.0, position))


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
    return _clamp(axis.to_percent(100 * low)), _clamp(axis.to_percent(100 * high))
