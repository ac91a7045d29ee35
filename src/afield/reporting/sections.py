"""Sections of the report, one per dataset: pure functions from records to the content of the page.

Accuracies are shares here and percentages on the page. Positions on charts are percentages of the
chart's size.

A merged model also costs what its base and its experts cost, and a model that starts from another
or adapts it costs what that one costs, where the store has their records.
"""

import base64
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import pandas as pd

from afield.reporting.charts.axes import Mark
from afield.reporting.charts.curves import GapTable, build_gap_table, curve_data
from afield.reporting.charts.draws import (
    Panel,
    ValidationPlot,
    build_validation_plot,
    setting_panels,
    validated_runs,
)
from afield.reporting.charts.forest_plot import (
    ForestPlot,
    GainTable,
    build_forest_plot,
    gains_by_domain,
)
from afield.reporting.charts.network_costs import NetworkCosts, build_network_costs
from afield.reporting.charts.samples import ClassErrors, class_errors, describe_data
from afield.reporting.claims import Claim, build_claims, leading_rule, ranked_means
from afield.reporting.comparison import Comparison, comparisons, references
from afield.reporting.formats import as_csv, as_latex
from afield.reporting.results import Results
from afield.reporting.sentences import (
    Headline,
    Summary,
    build_headline,
    build_summary,
    describe_lack,
)
from afield.reporting.table import (
    ALL_DATASETS,
    Column,
    display_order,
    find_column,
    format_number,
    table_caption,
    tabulate,
    tabulate_results,
)
from afield.runs.record import Record
from afield.runs.row import BOUND, FAMILIES, REFERENCE
from afield.runs.run import name_without_path
from afield.runs.selection import RULES, rules_to_show
from afield.studies.commands import row_command
from afield.training.metrics import find_metric

BASE_METHOD = "base"


@dataclass(frozen=True)
class Cost:
    """The cost of a method.

    Attributes
    ----------
    method
        The label of its row.
    runs
        The number of its runs.
    seconds
        The median time of a run.
    memory
        The peak memory of any run in bytes; 0 if unknown.
    time_ratio, min_time_ratio, max_time_ratio
        Median and range of the time relative to the matching run of erm; None without any.
    memory_ratio
        Median of the memory relative to the matching run of erm; None without any.
    """

    method: str
    runs: int
    seconds: float
    memory: int
    time_ratio: float | None = None
    min_time_ratio: float | None = None
    max_time_ratio: float | None = None
    memory_ratio: float | None = None


@dataclass(frozen=True)
class CostRow:
    """A method, its cost, and the length of its bar in percent."""

    method: Mark
    cost: Cost
    bar: float


def cost_rows(
    results: Results, records: Sequence[Record], marks: Mapping[str, Mark]
) -> tuple[list[CostRow], float]:
    """The costs with a bar each, the most expensive last, and where bars of the reference end."""
    costs = method_costs(results, records)
    longest = max((cost.time_ratio for cost in costs if cost.time_ratio), default=1.0)
    # Costs without a ratio come last.
    costs.sort(key=lambda c: (c.time_ratio is None, c.time_ratio or 0.0, c.seconds))
    bars = [round(100 * c.time_ratio / longest, 2) if c.time_ratio else 0 for c in costs]
    rows = [CostRow(marks[c.method], c, bar) for c, bar in zip(costs, bars, strict=True)]
    return rows, round(100 / max(longest, 1.0), 2)


def method_costs(results: Results, records: Iterable[Record]) -> list[Cost]:
    """The cost of every method; `records` are all of the store, with bases and experts."""
    by_key = {record.run.key: record for record in records}
    against = references(results)
    costs = []
    for method, method_records in results.methods.items():
        if not results.rows[method].is_bound:
            # The reference is compared with itself.
            other = against.get(method, method if method in against.values() else "")
            costs.append(_cost(method, method_records, results.methods.get(other, []), by_key))
    return costs


def _cost(
    method: str,
    records: Sequence[Record],
    reference: Sequence[Record],
    by_key: Mapping[str, Record],
) -> Cost:
    by_task = {_task(record): record for record in reference}
    pairs = [(each, by_task[_task(each)]) for each in records if _task(each) in by_task]
    times = [_seconds(one, by_key) / _seconds(two, by_key) for one, two in pairs if two.seconds > 0]
    memory_ratios = [
        _memory(one) / _memory(two) for one, two in pairs if _memory(one) and _memory(two)
    ]
    return Cost(
        method=method,
        runs=len(records),
        seconds=median(_seconds(record, by_key) for record in records),
        memory=max((_memory(record) for record in records), default=0),
        time_ratio=median(times) if times else None,
        min_time_ratio=min(times, default=None),
        max_time_ratio=max(times, default=None),
        memory_ratio=median(memory_ratios) if memory_ratios else None,
    )


def _task(record: Record) -> tuple[object, ...]:
    """The task of a run; runs of different methods can be compared on the same task."""
    run = record.run
    # The draws of a merge are of its own settings, with the same experts.
    return run.sources, run.trial, 0 if run.experts else run.draw


def _seconds(record: Record, by_key: Mapping[str, Record]) -> float:
    """The time of a run and of the runs that it is made of."""
    run = record.run
    # The row of the base is the base itself, although its record names the experts as well; the
    # base of an adapted run has counted them already.
    alone = run.method == BASE_METHOD or run.adaptation
    made_of = (run.base,) if alone else (run.base, *run.made_of)
    known = [by_key[key] for key in made_of if key in by_key]
    if run.adaptation:
        return record.seconds + sum(_seconds(other, by_key) for other in known)
    return record.seconds + sum(other.seconds for other in known)


def _memory(record: Record) -> int:
    return int(getattr(record, "memory", 0))


def make_marks(results: Results, frame: pd.DataFrame, rule: str) -> dict[str, Mark]:
    """A mark per method, the best mean under the leading rule first; methods without one last."""
    of_rule = frame[(frame["rule"] == rule) & (frame["domain"] == "mean")]
    means = dict(zip(of_rule["method"], of_rule["accuracy"], strict=True))
    ranked = {name: means.get(name, math.nan) for name in results.methods}
    names = sorted(ranked, key=lambda name: (math.isnan(ranked[name]), -ranked[name], name))
    places: dict[str, int] = {}
    marks = {}
    for number, name in enumerate(names):
        row = results.rows[name]
        place = places[row.family] = places.get(row.family, -1) + 1
        marks[name] = Mark(name, number, bound=row.is_bound, family=row.family, place=place)
    return marks


# The words for a verdict, and the class that colors them.
VERDICTS = {
    "better": ("better", "good"),
    "worse": ("worse", "bad"),
    "unclear": ("may be chance", ""),
    "level": ("equal", ""),
    "too few": ("cannot tell", ""),
}


@dataclass(frozen=True)
class Cell:
    """A number as it is sorted (`value`) and shown, its standard error, and whether it is best."""

    value: str = ""
    number: str = format_number(math.nan)
    stderr: str = ""
    best: bool = False

    @property
    def missing(self) -> bool:
        """Whether there is no number."""
        return not self.value


@dataclass(frozen=True)
class TableRow:
    """A method and its numbers, in the order of the columns."""

    method: Mark
    cells: Sequence[Cell]


@dataclass(frozen=True)
class ComparisonRow:
    """A comparison with its verdict in words and the class that colors it."""

    method: Mark
    comparison: Comparison
    verdict: str
    tone: str

    @property
    def intervals(self) -> tuple[float, ...]:
        """The ends of the uncorrected intervals: on these domains, and over domains like these."""
        alone = self.comparison.interval(corrected=False)
        return *alone, *self.comparison.interval(corrected=False, new_domain=True)


@dataclass(frozen=True)
class RuleTable:
    """All numbers that one rule gives; `columns` by name, None for the column of a domain."""

    rule: str
    description: str
    oracle: bool
    caption: str
    columns: Mapping[str, Column | None]
    rows: Sequence[TableRow]
    comparisons: Sequence[ComparisonRow]

    @property
    def groups(self) -> dict[str, list[TableRow]]:
        """The rows of every family that has any."""
        groups = {f: [row for row in self.rows if row.method.family == f] for f in FAMILIES}
        return {family: rows for family, rows in groups.items() if rows}

    @property
    def lack(self) -> str:
        """Why no comparison can tell a difference from chance; empty if one can."""
        if not self.comparisons or any(
            row.comparison.verdict != "too few" for row in self.comparisons
        ):
            return ""
        return describe_lack(self.comparisons[0].comparison)

    @property
    def incomplete(self) -> bool:
        """Whether a number is missing that every complete run has."""
        columns = enumerate(self.columns.values())
        required = [i for i, column in columns if column is None or not column.optional]
        return any(row.cells[i].missing for row in self.rows for i in required)


def build_rule_table(
    rule: str,
    frame: pd.DataFrame,
    comparisons: Sequence[Comparison],
    marks: Mapping[str, Mark],
    possible_best: Sequence[str] = (),
) -> RuleTable:
    """The table of a rule, the best mean first.

    `frame` is the table of all rules. The means of all methods that may be the best one are
    highlighted.
    """
    table = frame[frame["rule"] == rule]
    names = display_order(dict.fromkeys(table["domain"]))
    rows = [
        TableRow(marks[str(method)], _cells(cells, names, best=method in possible_best))
        for method, cells in table.groupby("method", sort=False)
    ]
    means = table[table["domain"] == "mean"].set_index("method")["accuracy"].dropna()
    return RuleTable(
        rule=rule,
        description=RULES[rule].description,
        oracle=RULES[rule].is_oracle,
        caption=table_caption(table),
        columns={name: find_column(name) for name in names},
        rows=sorted(rows, key=lambda row: -means.get(row.method.name, -math.inf)),
        comparisons=[
            ComparisonRow(marks[each.method], each, *VERDICTS[each.verdict]) for each in comparisons
        ],
    )


def _cells(frame: pd.DataFrame, names: Sequence[str], *, best: bool) -> list[Cell]:
    columns = zip(frame["domain"], frame["accuracy"], frame["stderr"], strict=True)
    numbers = {str(name): (float(accuracy), float(stderr)) for name, accuracy, stderr in columns}
    cells = []
    for name in names:
        accuracy, stderr = numbers.get(name, (math.nan, math.nan))
        error = "" if math.isnan(stderr) else format_number(stderr)
        shown = Cell(f"{accuracy:.6f}", format_number(accuracy), error, best and name == "mean")
        cells.append(Cell() if math.isnan(accuracy) else shown)
    return cells


# With more points than this, the points have no tooltips.
MAX_TITLED_POINTS = 1500


@dataclass(frozen=True)
class Section:
    """All that the page shows of one dataset."""

    id: str
    results: Results
    headline: Headline
    summary: Summary
    frame: pd.DataFrame
    marks: Mapping[str, Mark]
    rules: Sequence[RuleTable] = ()
    forest: ForestPlot | None = None
    curves: Mapping[str, Any] | None = None
    gaps: GapTable | None = None
    validation: ValidationPlot | None = None
    gains: GainTable | None = None
    classes: ClassErrors | None = None
    settings: Mapping[str, Sequence[Panel]] = field(default_factory=dict)
    costs: Sequence[CostRow] = ()
    reference_bar_end: float = 0.0
    network_costs: NetworkCosts | None = None
    commands: Sequence[tuple[Mark, str]] = ()
    reference: str = ""
    several_references: bool = False

    @property
    def title(self) -> str:
        """The name of the dataset, and how many domains are held out."""
        return self.results.title

    @property
    def is_older(self) -> bool:
        """Whether there are results of a newer version of the same data."""
        return self.results.is_older

    @property
    def features(self) -> str:
        """The frozen networks whose features are trained on, in words; empty if there are none."""
        encoders = dict.fromkeys(row.encoder for row in self.results.rows.values() if row.encoder)
        return ", ".join(name_without_path(encoder) for encoder in encoders)

    @property
    def metric(self) -> str:
        """What the tables show, in words."""
        return find_metric(self.results.metric).title

    @property
    def many_held_out(self) -> bool:
        """Whether a share of many domains is held out."""
        return self.results.many_held_out

    @property
    def methods(self) -> list[Mark]:
        """The marks of all rows."""
        return list(self.marks.values())

    @property
    def families(self) -> Mapping[str, Sequence[Mark]]:
        """The marks of every family that has rows."""
        groups = {f: [mark for mark in self.methods if mark.family == f] for f in FAMILIES}
        return {family: members for family, members in groups.items() if members}

    @property
    def bound(self) -> str:
        """The name of the upper bound, which has seen the target; empty if it was not run."""
        return BOUND if any(mark.bound for mark in self.methods) else ""

    @property
    def confidence(self) -> bool:
        """Whether a table has columns about confidence, which a switch shows."""
        columns = [column for rule in self.rules for column in rule.columns.values()]
        return any(column is not None and column.confidence for column in columns)

    @property
    def data(self) -> str:
        """What the data and networks are, in a line."""
        return describe_data(self.results)

    @property
    def memory(self) -> bool:
        """Whether the memory of any run is known."""
        return any(row.cost.memory for row in self.costs)

    @property
    def merged(self) -> bool:
        """Whether some models are merged."""
        return any(row.is_merged for row in self.results.rows.values())

    @property
    def adapted(self) -> list[Mark]:
        """The rows whose models have seen unlabelled samples of the target."""
        rows = self.results.rows
        return [mark for name, mark in self.marks.items() if rows[name].sees_samples]

    @property
    def titled(self) -> bool:
        """Whether there are few enough points for each to have a tooltip."""
        panels = [panel for of_method in self.settings.values() for panel in of_method]
        panels += [self.validation.panel] if self.validation else []
        return sum(len(panel.points) for panel in panels) <= MAX_TITLED_POINTS

    @property
    def file(self) -> str:
        """The name of downloaded files, without suffix."""
        return re.sub(r"[^\w.-]+", "_", self.title, flags=re.ASCII).strip("_.") or "tables"

    @property
    def csv(self) -> str:
        """All tables as CSV, in base64."""
        return _base64(as_csv(self.frame) + "\n")

    @property
    def latex(self) -> str:
        """All tables as LaTeX, in base64."""
        claims = build_claims(self.results, self.frame)
        tested = {(self.title, rule): claim for rule, claim in claims.items()}
        return _base64(as_latex(self.frame, tested=tested) + "\n")

    @property
    def facts(self) -> str:
        """How much was run, in a line."""
        records = [record for of_method in self.results.methods.values() for record in of_method]
        counts = {
            "method": len([mark for mark in self.methods if not mark.bound]),
            "unseen domain": len(self.results.domains),
            "trial": len({record.run.trial for record in records}),
            "hyperparameter sample": len({record.run.draw for record in records}),
            "run": len(records),
        }
        return ", ".join(f"{n} {noun}{'s' * (n != 1)}" for noun, n in counts.items()) + "."

    @property
    def curves_note(self) -> str:
        """What the lines of the curves are."""
        runs = self.curves["runs"] if self.curves else []
        band = "The band is two standard errors of the samples wide on either side."
        if not all(run["w"] for run in runs):
            fewest = round(min(run["n"] for run in runs))
            return (
                f"Sources: mean over their validation splits. Unseen*: {fewest} or more samples of "
                f"the test split. {band} Picked checkpoints are marked at their accuracy on the "
                "whole test split, which may lie off the curve."
            )
        return f"Sources: mean over their validation splits. Unseen: the test split. {band}"


def build_section(
    number: int,
    results: Results,
    records: Sequence[Record],
    store: str,
    rerun_store: str,
    asked: Sequence[str] = (),
) -> Section:
    """The section of one dataset, which has this number on the page.

    `records` are all records of the store, including bases and experts of merged models. The
    commands for repeating runs write to `rerun_store`. `asked` are the selection rules to show, by
    default all that never look at the target.
    """
    frame = tabulate_results(results, rules=rules_to_show(asked))
    if frame.empty:
        frame = tabulate_results(results)
    if results.metric:
        frame = frame.assign(metric=results.metric)
    leading = leading_rule(frame)
    rules = sorted(dict.fromkeys(frame["rule"]), key=lambda rule: rule != leading)
    # Differences are shown in percentage points.
    has_points = find_metric(results.metric).is_share
    compared = {rule: comparisons(results, rule) if has_points else [] for rule in rules}
    of_leading = compared.get(leading, [])
    marks = make_marks(results, frame, leading)
    claims = build_claims(results, frame)
    headline = build_headline(results, frame, claims.get(leading))
    headline = _naming_metric(headline, results.metric)
    forest = build_forest_plot(frame, leading, of_leading, headline.best) if has_points else None
    against = references(results)
    # Curves and hyperparameter samples are shown by accuracy, which every checkpoint has.
    plain = replace(results, metric="", _picks={}) if results.metric else results
    validated = validated_runs(plain)
    drawn = setting_panels(validated)
    costs, reference_bar_end = cost_rows(results, records, marks)
    return Section(
        id=f"d{number}",
        results=results,
        headline=headline,
        frame=frame,
        marks=marks,
        summary=build_summary(results, frame, leading, claims.get(leading), store),
        rules=[
            build_rule_table(rule, frame, compared[rule], marks, _possible_best(claims.get(rule)))
            for rule in rules
        ],
        forest=_forest_of_metric(forest, results.metric),
        curves=curve_data(plain, rules, marks),
        gaps=build_gap_table(plain, rules, marks),
        validation=build_validation_plot(validated),
        gains=gains_by_domain(results, leading, marks) if leading and against else None,
        classes=class_errors(results, leading, headline.best) if headline.best else None,
        settings={name: drawn[name] for name in marks if name in drawn},
        costs=costs,
        reference_bar_end=reference_bar_end,
        network_costs=build_network_costs(results, frame, leading, marks) if has_points else None,
        commands=_commands(results, marks, rerun_store),
        reference=REFERENCE if against else "",
        several_references=len(set(against.values())) > 1,
    )


def _naming_metric(headline: Headline, metric: str) -> Headline:
    """The headline with a remark on the metric, unless it is accuracy."""
    if not metric:
        return headline
    remark = f"Numbers are {find_metric(metric).title}; curves and plots of settings show accuracy."
    return replace(headline, remarks=[remark, *headline.remarks])


def _forest_of_metric(plot: ForestPlot | None, metric: str) -> ForestPlot | None:
    """The plot with the name of the metric in its caption."""
    if plot is None or not metric:
        return plot
    title = find_metric(metric).title
    caption = plot.caption.replace("accuracy", title).replace("Accuracy", title)
    return replace(plot, caption=caption[0].upper() + caption[1:])


def build_overviews(
    records: Sequence[Record], metric: str, asked: Sequence[str]
) -> list[RuleTable]:
    """The tables over all datasets, one per rule."""
    frame = tabulate(records, rules=rules_to_show(asked), metric=metric, over_datasets=True)
    frame = frame[frame["dataset"] == ALL_DATASETS]
    sees = dict(zip(map(str, frame["method"]), frame["sees"], strict=True))
    marks = {
        name: Mark(name, n, bound=seen == "labels", place=n)
        for n, (name, seen) in enumerate(sees.items())
    }
    return [
        build_rule_table(rule, frame, [], marks, list(ranked_means(frame, rule))[:1])
        for rule in dict.fromkeys(frame["rule"])
    ]


def _possible_best(claim: Claim | None) -> Sequence[str]:
    """The methods whose means are highlighted: all that may be the best."""
    return () if claim is None else claim.possible_best or (claim.leader,)


def _commands(
    results: Results, marks: Mapping[str, Mark], rerun_store: str
) -> list[tuple[Mark, str]]:
    """The command for every row; rows that come with any merge need one to ask for."""
    rows = results.rows.values()
    merges = [row.method for row in rows if row.is_merged and not row.is_baseline]
    merge = merges[0] if merges else "average"
    return [
        (mark, row_command(results.methods[name], store=rerun_store, merge=merge))
        for name, mark in marks.items()
    ]


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
