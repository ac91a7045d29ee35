"""The results table: accuracy on every unseen domain, and columns that summarize them.

Another metric can take the place of the accuracy; the table then has a column `metric`.
Each number is a mean over trials, and its standard error is the standard deviation over trials
(with n - 1 in the denominator) divided by √n. A summary column reduces the domains of each trial to
one number first; `COLUMNS` in `columns.py` lists them all.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from afield.compute import pause_cycle_search
from afield.experiments.record import Record
from afield.experiments.selection import RULES, resolve_rules
from afield.reporting.results import (
    UPPER_BOUND,
    Picks,
    Results,
    group_records,
    sees_target_samples,
)
from afield.reporting.table.columns import (
    COLUMNS,
    MISSING,
    Column,
    find_column,
    format_value,
    lower_is_better,
)
from afield.reporting.table.datasets import mean_over_datasets
from afield.training.metrics import DEFAULT_METRIC, find_metric

__all__ = ["ranks", "shown_metric", "table_caption", "tabulate", "tabulate_results"]

FIELDS = ["dataset", "rule", "method", "domain", "accuracy", "stderr", "trials", "draws"]


@pause_cycle_search()
def tabulate(
    records: Iterable[Record],
    *,
    rules: str | Sequence[str] | None = None,
    metric: str = DEFAULT_METRIC,
    over_datasets: bool = False,
) -> pd.DataFrame:
    """One row for each dataset, rule, method and unseen domain or summary column.

    The methods of a dataset and rule are in the order of their means, the best one first; an upper
    bound, which has seen the target, comes last. Rules that need more than the records hold have
    no rows.

    Parameters
    ----------
    records
        Records of one or several datasets.
    rules
        Names of selection rules; by default all.
    metric
        What to show in place of the accuracy; see `afield.training.metrics`. Runs are not repeated
        for it. It does not change what is selected.
    over_datasets
        Whether to add a table with one column per dataset and the mean over datasets.

    Examples
    --------
    >>> list(tabulate([]).columns)
    ['dataset', 'rule', 'method', 'domain', 'accuracy', 'stderr', 'trials', 'draws']
    """
    find_metric(metric)
    wanted = resolve_rules([rules] if isinstance(rules, str) else rules or list(RULES))
    frame = tabulate_results(*group_records(records, metric), rules=wanted)
    if over_datasets:
        frame = pd.concat([frame, mean_over_datasets(frame)], ignore_index=True)
    return frame if metric == DEFAULT_METRIC else frame.assign(metric=metric)


def tabulate_results(*datasets: Results, rules: Sequence[str] = tuple(RULES)) -> pd.DataFrame:
    """The rows of `tabulate` for results that are grouped already, without a column `metric`."""
    rows = [row for each in datasets for rule in rules for row in _rule_rows(each, rule)]
    return pd.DataFrame(rows, columns=FIELDS)


def _rule_rows(results: Results, rule: str) -> Iterator[tuple[object, ...]]:
    picks = results.picks(rule)
    columns = [column for column in COLUMNS if _applies(column, results, picks.values())]
    values = {method: _trial_values(picked, results, columns) for method, picked in picks.items()}
    # An upper bound may have numbers under a rule that was not asked for; alone it says nothing.
    if all(method.startswith(UPPER_BOUND) for method, of_method in values.items() if of_method):
        return
    for method in sorted(values, key=lambda name: _place(name, values[name], results.metric)):
        draws = len({record.run.draw for record in results.methods[method]})
        for name, by_trial in values[method].items():
            numbers = float(by_trial.mean()), _stderr(by_trial), len(by_trial)
            yield (results.title, rule, method, name, *numbers, draws)


def _place(
    method: str, values: Mapping[str, "pd.Series[float]"], metric: str
) -> tuple[bool, bool, float]:
    """Where a method stands in the table: by its mean, without one near the end."""
    mean = float(values["mean"].mean()) if "mean" in values else math.nan
    better = mean if find_metric(metric).lower_is_better else -mean
    unknown = math.isnan(mean)
    return method.startswith(UPPER_BOUND), unknown, 0.0 if unknown else better


def _applies(column: Column, results: Results, picks: Iterable[Picks]) -> bool:
    if column.many_held_out not in (None, results.many_held_out):
        return False
    return any(_values(method_picks, column.value).notna().any(axis=None) for method_picks in picks)


def _trial_values(
    picks: Picks, results: Results, columns: Sequence[Column]
) -> dict[str, "pd.Series[float]"]:
    """The numbers of one method by column, one per trial; empty without any pick."""
    accuracies, picked = _values(picks, "accuracy"), _values(picks, "step").notna()
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
        by_column[column.name] = _summary(column, values[complete & evaluated], results.metric)
    return by_column


def _summary(column: Column, values: pd.DataFrame, metric: str) -> "pd.Series[float]":
    if column.lowest and find_metric(metric).lower_is_better:
        return -column.summarize(-values)
    return column.summarize(values)


def _values(picks: Picks, attribute: str) -> pd.DataFrame:
    """One row per trial, one column per domain, NaN where there is no pick."""
    domains = list(next(iter(picks.values()), {}))
    rows = [
        [getattr(by_domain[domain], attribute, None) for domain in domains]
        for by_domain in picks.values()
    ]
    values = np.array(rows, dtype=np.float64).reshape(len(picks), len(domains))
    return pd.DataFrame(values, index=list(picks), columns=domains)


def _stderr(values: "pd.Series[float]") -> float:
    return float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def table_caption(frame: pd.DataFrame) -> str:
    """Describe the numbers of a table."""
    columns = [column for column in COLUMNS if column.name in set(frame["domain"])]
    # Values that complete runs may lack do not count as missing trials.
    optional = [column.name for column in columns if column.optional]
    measured = frame[~frame["domain"].isin(optional) & frame["accuracy"].notna()]
    trials = _count((frame if measured.empty else measured)["trials"], "trial")
    draws = _count(frame["draws"], "hyperparameter sample")
    several = frame["trials"].max() > 1
    error = f"± standard error over {trials}" if several else f"{trials}, no standard error"
    best = f", best of {draws}" if frame["draws"].max() > 1 else ""
    metric = find_metric(shown_metric(frame))
    unit = " (%)" if metric.is_share else ""
    notes = [f"{metric.title}{unit} on unseen domains, {error}{best}"]
    notes += ["lower is better"] if metric.lower_is_better else []
    notes += [f"{column.name}: {column.note}" for column in columns if column.note]
    if frame["method"].str.startswith(UPPER_BOUND).any():
        notes.append(f"{UPPER_BOUND}: trained on the target, tested on its validation split")
    adapted = [name for name in dict.fromkeys(frame["method"]) if sees_target_samples(name)]
    if adapted:
        have = "has" if len(adapted) == 1 else "have"
        notes.append(f"{', '.join(adapted)}: {have} seen unlabelled target samples")
    if metric.lacking and frame["accuracy"].isna().any():
        notes.append(f"{MISSING}: {metric.lacking}")
    return "; ".join(notes)


def shown_metric(frame: pd.DataFrame) -> str:
    """The name of the metric that a table shows in place of the accuracy."""
    return str(frame["metric"].iloc[0]) if "metric" in frame and len(frame) else DEFAULT_METRIC


def ranks(frame: pd.DataFrame) -> dict[tuple[str, str], int]:
    """The best (1) and second best (2) in every column of one rule's table.

    Methods whose numbers are equal, rounded as they are shown, share a rank.

    >>> rows = [("x", "mean", 0.5), ("y", "mean", 0.9)]
    >>> ranks(pd.DataFrame(rows, columns=["method", "domain", "accuracy"]))
    {('x', 'mean'): 2, ('y', 'mean'): 1}
    """
    ranked_cells: dict[tuple[str, str], int] = {}
    metric = find_metric(shown_metric(frame))
    for domain, cells in frame.groupby("domain", sort=False):
        column = find_column(str(domain))
        numbers = {
            str(method): float(format_value(accuracy, column, metric))
            for method, accuracy in zip(cells["method"], cells["accuracy"], strict=True)
            if not math.isnan(accuracy) and not str(method).startswith(UPPER_BOUND)
        }
        ascending = lower_is_better(column, metric)
        ranked = sorted(set(numbers.values()), reverse=not ascending)
        if len(ranked) > 1:
            first_two = {number: rank for rank, number in enumerate(ranked[:2], start=1)}
            ranked_cells |= {
                (m, str(domain)): first_two[n] for m, n in numbers.items() if n in first_two
            }
    return ranked_cells


def _count(counts: "pd.Series[int]", noun: str) -> str:
    """A number with its noun, or a range where rows differ: "3 trials", "1–2 samples"."""
    low, high = int(counts.min()), int(counts.max())
    number = str(high) if low == high else f"{low}–{high}"
    return f"{number} {noun}{'s' * (high > 1)}"
