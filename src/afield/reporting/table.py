"""The results table: accuracy on every unseen domain, and columns that summarize them.

Each number is a mean over trials, and its standard error is the standard deviation over trials
(with n - 1 in the denominator) divided by √n. A summary column reduces the domains of each trial to
one number first; `COLUMNS` lists them all.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from afield.experiments.record import Record
from afield.experiments.selection import RULES, resolve_rules
from afield.reporting.results import (
    UPPER_BOUND,
    Picks,
    Results,
    group_records,
    sees_target_samples,
)

__all__ = [
    "COLUMNS",
    "Column",
    "find_column",
    "format_number",
    "ranks",
    "table_caption",
    "tabulate",
]

MISSING = "–"
FIELDS = ["dataset", "rule", "method", "domain", "accuracy", "stderr", "trials", "draws"]


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
    confidence: bool = False


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
    Column("worst", _worst, many_held_out=False),
    Column(
        "worst 10 %",
        _worst_tenth,
        many_held_out=True,
        note="mean over the worst tenth of the domains",
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
)
_BY_NAME = {column.name: column for column in COLUMNS}


def find_column(name: str) -> Column | None:
    """The summary column of this name; None for the column of a domain."""
    return _BY_NAME.get(name)


def tabulate(
    records: Iterable[Record], *, rules: str | Sequence[str] | None = None
) -> pd.DataFrame:
    """One row for each dataset, rule, method and unseen domain or summary column.

    Rules that need more than the records hold have no rows.

    >>> list(tabulate([]).columns)
    ['dataset', 'rule', 'method', 'domain', 'accuracy', 'stderr', 'trials', 'draws']
    """
    wanted = resolve_rules([rules] if isinstance(rules, str) else rules or list(RULES))
    rows = [
        row
        for results in group_records(records)
        for rule in wanted
        for row in _rule_rows(results, rule)
    ]
    return pd.DataFrame(rows, columns=FIELDS)


def _rule_rows(results: Results, rule: str) -> Iterator[tuple[object, ...]]:
    picks = results.picks(rule)
    columns = [column for column in COLUMNS if _applies(column, results, picks.values())]
    for method, method_picks in picks.items():
        draws = len({record.run.draw for record in results.methods[method]})
        for name, values in _trial_values(method_picks, results, columns).items():
            numbers = float(values.mean()), _stderr(values), len(values)
            yield (results.title, rule, method, name, *numbers, draws)


def _applies(column: Column, results: Results, picks: Iterable[Picks]) -> bool:
    if column.many_held_out not in (None, results.many_held_out):
        return False
    return any(_values(method_picks, column.value).notna().any(axis=None) for method_picks in picks)


def _trial_values(
    picks: Picks, results: Results, columns: Sequence[Column]
) -> dict[str, "pd.Series[float]"]:
    """The numbers of one method by column, one per trial; empty without any pick."""
    accuracies = _values(picks, "accuracy")
    picked = accuracies.notna()
    if not picked.any(axis=None):
        return {}
    # Where many domains are held out, each trial tests some of them.
    complete = picked.any(axis=1) if results.many_held_out else picked.all(axis=1)
    domains = () if results.many_held_out else results.domains
    by_column = {domain: accuracies[domain].dropna() for domain in domains}
    for column in columns:
        values = _values(picks, column.value)
        found = values.notna()
        evaluated = found.any(axis=1) if column.partial else (found == picked).all(axis=1)
        by_column[column.name] = column.summarize(values[complete & evaluated])
    return by_column


def _values(picks: Picks, attribute: str) -> pd.DataFrame:
    """One row per trial, one column per domain, NaN where there is no pick."""
    values = {
        trial: {domain: getattr(pick, attribute, None) for domain, pick in by_domain.items()}
        for trial, by_domain in picks.items()
    }
    return pd.DataFrame.from_dict(values, orient="index").astype(float)


def _stderr(values: "pd.Series[float]") -> float:
    return float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def table_caption(frame: pd.DataFrame) -> str:
    """Describe the numbers of a table."""
    columns = [column for column in COLUMNS if column.name in set(frame["domain"])]
    # Values that complete runs may lack do not count as missing trials.
    optional = [column.name for column in columns if column.optional]
    trials = _count(frame["trials"][~frame["domain"].isin(optional)], "trial")
    draws = _count(frame["draws"], "hyperparameter sample")
    several = frame["trials"].max() > 1
    error = f"± standard error over {trials}" if several else f"{trials}, no standard error"
    best = f", best of {draws}" if frame["draws"].max() > 1 else ""
    notes = [f"accuracy (%) on unseen domains, {error}{best}"]
    notes += [f"{column.name}: {column.note}" for column in columns if column.note]
    if frame["method"].str.startswith(UPPER_BOUND).any():
        notes.append(f"{UPPER_BOUND}: trained on the target, tested on its validation split")
    adapted = [name for name in dict.fromkeys(frame["method"]) if sees_target_samples(name)]
    if adapted:
        notes.append(f"{', '.join(adapted)}: has seen unlabelled target samples")
    return "; ".join(notes)


def ranks(frame: pd.DataFrame) -> dict[tuple[str, str], int]:
    """The best (1) and second best (2) in every column of one rule's table.

    Methods whose numbers are equal, rounded as they are shown, share a rank.

    >>> rows = [("x", "mean", 0.5), ("y", "mean", 0.9)]
    >>> ranks(pd.DataFrame(rows, columns=["method", "domain", "accuracy"]))
    {('x', 'mean'): 2, ('y', 'mean'): 1}
    """
    ranked_cells: dict[tuple[str, str], int] = {}
    for domain, cells in frame.groupby("domain", sort=False):
        numbers = {
            str(method): float(format_number(accuracy))
            for method, accuracy in zip(cells["method"], cells["accuracy"], strict=True)
            if not math.isnan(accuracy) and not str(method).startswith(UPPER_BOUND)
        }
        column = find_column(str(domain))
        ascending = column is not None and column.lower_is_better
        ranked = sorted(set(numbers.values()), reverse=not ascending)
        if len(ranked) > 1:
            first_two = {number: rank for rank, number in enumerate(ranked[:2], start=1)}
            ranked_cells |= {
                (m, str(domain)): first_two[n] for m, n in numbers.items() if n in first_two
            }
    return ranked_cells


def format_number(share: float) -> str:
    """A share as a percentage without its sign, or a dash for NaN.

    >>> format_number(0.875), format_number(float("nan"))
    ('87.5', '–')
    """
    return MISSING if math.isnan(share) else f"{100 * share:.1f}"


def _count(counts: "pd.Series[int]", noun: str) -> str:
    """A number with its noun, or a range where rows differ: "3 trials", "1–2 samples"."""
    low, high = int(counts.min()), int(counts.max())
    number = str(high) if low == high else f"{low}–{high}"
    return f"{number} {noun}{'s' * (high > 1)}"
