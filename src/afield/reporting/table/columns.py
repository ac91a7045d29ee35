"""The columns of a results table that summarize domains, and how their numbers are written."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pandas as pd

from afield.training.metrics import Metric

__all__ = [
    "COLUMNS",
    "MISSING",
    "Column",
    "display_order",
    "find_column",
    "format_number",
    "format_value",
    "lower_is_better",
]

MISSING = "–"


@dataclass(frozen=True)
class Column:
    """A summary column: its name, and how the values of a trial's domains become one number.

    Attributes
    ----------
    name
        What tables show; no domain may have this name.
    summarize
        Function from a frame with one row per trial and one column per domain to one number per
        trial.
    value
        The attribute of `Pick` that is summarized.
    many_held_out
        True: only where a share of many domains is held out. False: only where each domain is left
        out in turn. None: in both cases.
    lower_is_better
        Whether the lowest number of the column is the best.
    optional
        Whether complete runs may lack the value, such as those of an older version. The column
        appears if any method has it.
    partial
        Whether it summarizes only the domains that have the value.
    note
        What captions say about it.
    lowest
        Whether it summarizes the worst values, which are the highest ones if lower is better.
    confidence
        Whether it says how far the model's confidence can be trusted. Narrow terminals omit these
        columns.
    """

    name: str
    summarize: Callable[[pd.DataFrame], "pd.Series[float]"]
    value: str = "accuracy"
    many_held_out: bool | None = None
    lower_is_better: bool = False
    optional: bool = False
    partial: bool = False
    note: str = ""
    lowest: bool = False
    confidence: bool = False

    @property
    def of_metric(self) -> bool:
        """Whether it shows the metric of the table, and not always an accuracy or an error."""
        return self.value in ("accuracy", "in_domain", "known")


def _mean(trials: pd.DataFrame) -> "pd.Series[float]":
    return trials.mean(axis=1)


def _worst(trials: pd.DataFrame) -> "pd.Series[float]":
    return trials.min(axis=1)


def _worst_tenth(trials: pd.DataFrame) -> "pd.Series[float]":
    """Mean over the worst tenth of a trial's domains, rounded, but at least one."""
    rows = [row.dropna().sort_values() for _, row in trials.iterrows()]
    return pd.Series([row.iloc[: max(1, round(len(row) / 10))].mean() for row in rows])


def _deviation(trials: pd.DataFrame) -> "pd.Series[float]":
    return trials.std(axis=1, ddof=0)


COLUMNS = (
    Column("mean", _mean),
    Column("worst", _worst, many_held_out=False, lowest=True),
    Column(
        "worst 10 %",
        _worst_tenth,
        many_held_out=True,
        note="mean over the worst tenth of the domains",
        lowest=True,
    ),
    Column(
        "spread",
        _deviation,
        many_held_out=True,
        lower_is_better=True,
        note="standard deviation over domains",
    ),
    Column("in-domain", _mean, "in_domain", note="on the validation splits of the sources"),
    Column(
        "known domain",
        _mean,
        "known",
        optional=True,
        note="in-domain, with the domain label given",
    ),
    Column(
        "calibration error",
        _mean,
        "calibration_error",
        lower_is_better=True,
        optional=True,
        note="lower is better",
        confidence=True,
    ),
    Column(
        "accuracy at 90 %",
        _mean,
        "accuracy_at_90",
        optional=True,
        note="on the most confident 90 % of the samples",
        confidence=True,
    ),
    Column(
        "unseen classes",
        _mean,
        "unseen_classes",
        optional=True,
        partial=True,
        note="share of the samples whose class no source has, where there are any; they are not "
        "part of the accuracy",
    ),
    Column(
        "confidence on unseen classes",
        _mean,
        "unseen_confidence",
        lower_is_better=True,
        optional=True,
        partial=True,
        note="mean of the greatest probability",
    ),
    Column(
        "worst group",
        _worst,
        "worst_group",
        optional=True,
        note="lowest accuracy of a group of samples",
    ),
    Column(
        "10 % group",
        _mean,
        "p10_group",
        optional=True,
        note="10th percentile of the accuracies on groups",
    ),
    Column("mean group", _mean, "mean_group", optional=True, note="mean accuracy over groups"),
)
_BY_NAME = {column.name: column for column in COLUMNS}


def find_column(name: str) -> Column | None:
    """The summary column of this name; None for the column of a domain."""
    return _BY_NAME.get(name)


def display_order(names: Iterable[str]) -> list[str]:
    """Names of columns in the order for readers: mean and worst, domains, the other summaries.

    >>> display_order(["art", "photo", "mean", "worst", "in-domain"])
    ['mean', 'worst', 'art', 'photo', 'in-domain']
    """

    def place(name: str) -> int:
        column = find_column(name)
        if column is None:
            return 2
        return 0 if column.name == "mean" else 1 if column.lowest else 3

    return sorted(names, key=place)


def lower_is_better(column: Column | None, metric: Metric) -> bool:
    """Whether the lowest number of a column is the best; no column means that of a domain."""
    if column is not None and (column.lower_is_better or not column.of_metric):
        return column.lower_is_better
    return metric.lower_is_better


def format_value(value: float, column: Column | None, metric: Metric) -> str:
    """A number of a column: in percent, or with three digits if the metric is no share."""
    if metric.is_share or (column is not None and not column.of_metric):
        return format_number(value)
    return MISSING if math.isnan(value) else f"{value:.3f}"


def format_number(share: float) -> str:
    """A share as a percentage without its sign, or a dash for NaN.

    >>> format_number(0.875), format_number(float("nan"))
    ('87.5', '–')
    """
    return MISSING if math.isnan(share) else f"{100 * share:.1f}"
