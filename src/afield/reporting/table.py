"""The results table: its rows, its columns, and a table over several datasets."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from afield.compute import pause_cycle_search
from afield.reporting.results import Picks, Results, group_records
from afield.runs.record import Record
from afield.runs.row import BOUND, pretraining_note
from afield.runs.run import name_without_path
from afield.runs.selection import RULES, resolve_rules
from afield.training.metrics import DEFAULT_METRIC, Metric, find_metric

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
        Whether complete runs may lack the value, such as runs of an older version. The column
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
        lambda trials: trials.std(axis=1, ddof=0),
        many_held_out=True,
        lower_is_better=True,
        note="standard deviation over domains",
    ),
    Column("in-domain", _mean, "in_domain", note="on the validation splits of the sources"),
    Column(
        "known domain", _mean, "known", optional=True, note="in-domain, with the domain label given"
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
    """Whether the lowest number of a column is the best; None is the column of a domain."""
    if column is not None and (column.lower_is_better or not column.of_metric):
        return column.lower_is_better
    return metric.lower_is_better


def format_value(value: float, column: Column | None, metric: Metric) -> str:
    """A number of a column: in percent, or with three digits if the metric is not a share."""
    if metric.is_share or (column is not None and not column.of_metric):
        return format_number(value)
    return MISSING if math.isnan(value) else f"{value:.3f}"


def format_number(share: float) -> str:
    """A share as a percentage without its sign, or a dash for NaN.

    >>> format_number(0.875), format_number(float("nan"))
    ('87.5', '–')
    """
    return MISSING if math.isnan(share) else f"{100 * share:.1f}"


# What tables call all datasets together.
ALL_DATASETS = "all datasets"


def mean_over_datasets(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of the table over datasets, from the tables of each; empty for one dataset."""
    means = frame[frame["domain"] == "mean"]
    names = list(dict.fromkeys(means["dataset"]))
    rows: list[dict[str, object]] = []
    if len(names) > 1:
        for rule, of_rule in means.groupby("rule", sort=False):
            for method, cells in of_rule.groupby("method", sort=False):
                rows += _method_rows(str(rule), str(method), cells, names)
    return pd.DataFrame(rows, columns=frame.columns).astype(frame.dtypes.to_dict())


def group_by_network(frame: pd.DataFrame) -> pd.DataFrame:
    """The same numbers with a table for each network, whose rows do not repeat its name.

    Datasets with one network stay as they are.

    >>> rows = [("pets", f"erm backbone={name}", name) for name in ("timm:a", "timm:b")]
    >>> group_by_network(pd.DataFrame(rows, columns=["dataset", "method", "network"]))
                dataset method network
    0  pets with timm:a    erm  timm:a
    1  pets with timm:b    erm  timm:b
    """
    several = frame.groupby("dataset")["network"].transform("nunique") > 1
    network = frame["network"].astype(str)
    names = zip(frame["method"].astype(str), network, strict=True)
    bare = [_without_word(method, f"backbone={name}") for method, name in names]
    grouped = frame.assign(
        dataset=frame["dataset"].where(~several, frame["dataset"] + " with " + network),
        method=frame["method"].where(~several, pd.Series(bare, index=frame.index, dtype=object)),
    )
    # Rows of a network need not be next to each other in the common table.
    place = {title: number for number, title in enumerate(dict.fromkeys(grouped["dataset"]))}
    order = grouped["dataset"].map(place).astype(int)
    return grouped.loc[order.sort_values(kind="stable").index].reset_index(drop=True)


def _without_word(label: str, word: str) -> str:
    return " ".join(each for each in label.split(" ") if each != word)


def _method_rows(
    rule: str, method: str, cells: pd.DataFrame, names: list[str]
) -> list[dict[str, object]]:
    """The rows of one method: its mean on every dataset, and the mean of these means."""
    by_dataset = cells.set_index("dataset").reindex(names)
    # Which of these a frame has depends on who made it.
    of_row = {name: cells[name].iloc[0] for name in ("sees", *NETWORK_FIELDS) if name in cells}
    shared = {"dataset": ALL_DATASETS, "rule": rule, "method": method, **of_row}
    trials, draws = (by_dataset[name].fillna(0).astype(int) for name in ("trials", "draws"))
    rows = [
        {
            **shared,
            "domain": name,
            "accuracy": by_dataset["accuracy"][name],
            "stderr": by_dataset["stderr"][name],
            "trials": trials[name],
            "draws": draws[name],
        }
        for name in names
    ]
    errors = by_dataset["stderr"]
    summary = {
        "domain": "mean",
        "accuracy": by_dataset["accuracy"].mean(skipna=False),
        "stderr": math.sqrt((errors**2).sum(skipna=False)) / len(names),
        "trials": trials.min(),
        "draws": draws.max(),
    }
    return [*rows, {**shared, **summary}]


FIELDS = ["dataset", "rule", "method", "domain", "accuracy", "stderr", "trials", "draws", "sees"]
NETWORK_FIELDS = ["network", "pretrained"]
FIELDS += NETWORK_FIELDS


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
    no rows. `sees` says what of the target the models of a row have seen: its ``labels`` (an upper
    bound), unlabelled ``samples``, or nothing (empty). `network` is the network that sees the data,
    and `pretrained` tells whether it has pretrained weights.

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
    >>> list(tabulate([]).columns)[:9]
    ['dataset', 'rule', 'method', 'domain', 'accuracy', 'stderr', 'trials', 'draws', 'sees']
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
    bounds = {method for method, row in results.rows.items() if row.is_bound}
    if all(method in bounds for method, of_method in values.items() if of_method):
        return
    places = {
        method: (method in bounds, *_place(of_method, results.metric))
        for method, of_method in values.items()
    }
    for method in sorted(values, key=lambda name: places[name]):
        draws = len({record.run.draw for record in results.methods[method]})
        row = results.rows[method]
        facts = row.sees, name_without_path(row.network), row.is_pretrained
        for name, by_trial in values[method].items():
            numbers = float(by_trial.mean()), _stderr(by_trial), len(by_trial)
            yield (results.title, rule, method, name, *numbers, draws, *facts)


def _place(values: Mapping[str, "pd.Series[float]"], metric: str) -> tuple[bool, float]:
    """Where a method stands in the table: by its mean, without one near the end."""
    mean = float(values["mean"].mean()) if "mean" in values else math.nan
    if math.isnan(mean):
        return True, 0.0
    return False, mean if find_metric(metric).lower_is_better else -mean


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
    if (frame["sees"] == "labels").any():
        notes.append(f"{BOUND}: trained on the target, tested on its validation split")
    adapted = list(dict.fromkeys(frame["method"][frame["sees"] == "samples"]))
    if adapted:
        have = "has" if len(adapted) == 1 else "have"
        notes.append(f"{', '.join(adapted)}: {have} seen unlabelled target samples")
    if metric.lacking and frame["accuracy"].isna().any():
        notes.append(f"{MISSING}: {metric.lacking}")
    if "pretrained" in frame and (seen := pretraining_note(frame["network"][frame["pretrained"]])):
        notes.append(seen)
    return "; ".join(notes)


def shown_metric(frame: pd.DataFrame) -> str:
    """The name of the metric that a table shows in place of the accuracy."""
    return str(frame["metric"].iloc[0]) if "metric" in frame and len(frame) else DEFAULT_METRIC


def ranks(frame: pd.DataFrame) -> dict[tuple[str, str], int]:
    """The best (1) and second best (2) in every column of one rule's table.

    Methods whose numbers are equal, rounded as they are shown, share a rank.

    >>> rows = [("x", "mean", 0.5, ""), ("y", "mean", 0.9, "")]
    >>> ranks(pd.DataFrame(rows, columns=["method", "domain", "accuracy", "sees"]))
    {('x', 'mean'): 2, ('y', 'mean'): 1}
    """
    ranked_cells: dict[tuple[str, str], int] = {}
    metric = find_metric(shown_metric(frame))
    for domain, cells in frame[frame["sees"] != "labels"].groupby("domain", sort=False):
        column = find_column(str(domain))
        numbers = {
            str(method): float(format_value(accuracy, column, metric))
            for method, accuracy in zip(cells["method"], cells["accuracy"], strict=True)
            if not math.isnan(accuracy)
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
