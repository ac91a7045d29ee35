"""What `afield.bench` returns: the records, with their table, report, best row and plot."""

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from shutil import get_terminal_size
from typing import TYPE_CHECKING

import pandas as pd
from rich.console import Console

from afield.errors import DataError, UnknownNameError
from afield.registry import hint
from afield.reporting.claims import all_claims, leading_rule
from afield.reporting.formats import as_html, as_rich
from afield.reporting.page import write_report
from afield.reporting.sentences import claim_lines, describe_claim
from afield.reporting.table import find_column, tabulate
from afield.runs.record import Failure, Record
from afield.runs.selection import RULES, rules_to_show
from afield.runs.store import Store
from afield.training.metrics import DEFAULT_METRIC, Metric, find_metric

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colors of the report: means, and the domains behind them.
MEAN_COLOR, DOMAIN_COLOR = "#0072b2", "#a9b4c0"


@dataclass(frozen=True)
class Best:
    """The row with the best mean of a dataset, and what the benchmark says about it."""

    dataset: str
    method: str
    accuracy: float
    sentence: str

    def __repr__(self) -> str:
        return f"{self.dataset}: {self.sentence}"


class BenchResult(list[Record]):
    """The records of a benchmark, in the order of its runs.

    It prints as the table that ``afield bench`` shows, also in a notebook. `failures` are the runs
    that failed.
    """

    def __init__(
        self,
        records: Iterable[Record] = (),
        *,
        failures: Sequence[Failure] = (),
        store: Store | None = None,
        rules: Sequence[str] = (),
        metric: str = DEFAULT_METRIC,
    ) -> None:
        super().__init__(records)
        self.failures = tuple(failures)
        self.store = store
        self.rules = tuple(rules)
        self.metric = metric

    def table(self, *, rules: Sequence[str] = (), metric: str = "") -> pd.DataFrame:
        """All numbers as a data frame, one per line, as `afield.tabulate` gives them."""
        return tabulate(self, rules=rules or self._rules(), metric=metric or self.metric)

    def report(self) -> str:
        """Write the report page of the store again, and return its path."""
        if self.store is None:
            raise DataError("these records are of no store; give one to afield.write_report")
        return write_report(self.store, rules=self.rules)

    @property
    def best(self) -> Best:
        """The best row; of several datasets, use `best_of`."""
        titles = list(dict.fromkeys(self.table()["dataset"]))
        if len(titles) != 1:
            raise DataError(f"results of {len(titles)} datasets; give one to best_of()")
        return self.best_of(titles[0])

    def best_of(self, dataset: str) -> Best:
        """The best row of a dataset, by its name in the table."""
        frame = self.table()
        titles = list(dict.fromkeys(frame["dataset"]))
        if dataset not in titles:
            raise UnknownNameError(f"no results of {dataset!r}; {hint(dataset, titles)}")
        rule = leading_rule(frame[frame["dataset"] == dataset])
        claim = all_claims(self, frame)[dataset, rule]
        return Best(dataset, claim.leader, claim.accuracy, describe_claim(claim))

    def plot(self) -> "Figure":
        """The mean of every row with its standard error, and each domain as a small dot."""
        from matplotlib.figure import Figure

        frame = self.table()
        parts = list(frame.groupby(["dataset", "rule"], sort=False))
        rows = sum(part["method"].nunique() for _, part in parts)
        figure = Figure(figsize=(7, 0.9 * len(parts) + 0.32 * rows), layout="constrained")
        for number, ((dataset, rule), part) in enumerate(parts, start=1):
            axes = figure.add_subplot(len(parts), 1, number)
            _plot(axes, part, find_metric(self.metric))
            axes.set_title(f"{dataset}, {RULES[str(rule)].description}", loc="left", fontsize=10)
        return figure

    def __repr__(self) -> str:
        width = max(80, get_terminal_size().columns)
        written = io.StringIO()
        console = Console(file=written, width=width, color_system=None)
        frame = self.table()
        if frame.empty:
            return self._summary()
        for each in as_rich(frame, width, claim_lines(self, frame)):
            console.print(each)
        lines = (line.rstrip() for line in written.getvalue().splitlines())
        return "\n".join([*lines, self._summary()])

    def _repr_html_(self) -> str:
        frame = self.table()
        return f"{as_html(frame, claim_lines(self, frame))}<p>{escape(self._summary())}</p>"

    def _rules(self) -> Sequence[str]:
        return rules_to_show(self.rules, [rule for record in self for rule in record.run.rules])

    def _summary(self) -> str:
        count = f"{len(self)} record{'s' * (len(self) != 1)}"
        failed = f", {len(self.failures)} failed" if self.failures else ""
        return f"{count}{failed}" + (f" in {self.store.where()}" if self.store else "")


def _plot(axes: "Axes", frame: pd.DataFrame, metric: Metric) -> None:
    """Draw the rows of one dataset and rule, the best at the top."""
    means = frame[frame["domain"] == "mean"].sort_values("accuracy")
    of_domain = frame[[find_column(str(name)) is None for name in frame["domain"]]]
    places = {method: number for number, method in enumerate(means["method"])}
    domains = of_domain[of_domain["method"].isin(places)]
    heights = [places[method] for method in domains["method"]]
    factor = 100 if metric.is_share else 1
    axes.plot(factor * domains["accuracy"], heights, ".", color=DOMAIN_COLOR, label="domains")
    axes.errorbar(
        factor * means["accuracy"],
        range(len(means)),
        xerr=factor * means["stderr"].fillna(0),
        fmt="o",
        color=MEAN_COLOR,
        label="mean ± standard error",
    )
    axes.set_yticks(range(len(means)), means["method"])
    axes.set_xlabel(f"{metric.title} (%)" if metric.is_share else metric.title)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, loc="best")
