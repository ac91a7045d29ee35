"""Several datasets in one table: a column for each dataset, and the mean over datasets.

This is the form of the main tables of many papers. A dataset's number is the mean over its unseen
domains. The mean over datasets gives each dataset the same weight, and exists for methods that have
a number on every dataset. Its standard error is √(Σ e²) / n for the errors e of n datasets, whose
runs are independent.
"""

import math

import pandas as pd

__all__ = ["ALL_DATASETS", "mean_over_datasets"]

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


def _method_rows(
    rule: str, method: str, cells: pd.DataFrame, names: list[str]
) -> list[dict[str, object]]:
    """The rows of one method: its mean on every dataset, and the mean of these means."""
    by_dataset = cells.set_index("dataset").reindex(names)
    shared = {"dataset": ALL_DATASETS, "rule": rule, "method": method}
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
