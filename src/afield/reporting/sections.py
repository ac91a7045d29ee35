"""What a report shows of one benchmark: pure functions from records to what a page is filled with.

Accuracies are shares here and per cent on the page; places on charts are in per cent of their size.
"""

import base64
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from afield.experiments.merge_runner import MERGE_BASELINES
from afield.experiments.record import Record
from afield.experiments.selection import RULES
from afield.reporting.axes import Mark
from afield.reporting.comparison import REFERENCE, Comparison, comparisons, references
from afield.reporting.costs import Cost, method_costs
from afield.reporting.curve_data import curve_data, gap_means
from afield.reporting.draws import (
    Panel,
    setting_panels,
    validation_panels,
    validation_rank_correlation,
)
from afield.reporting.forest_plot import ForestPlot, build_forest_plot
from afield.reporting.headline import ORACLE, Headline, build_headline, leading_rule
from afield.reporting.reproduce import row_command
from afield.reporting.results import UPPER_BOUND, Results
from afield.reporting.table import (
    CONFIDENCE_COLUMNS,
    LOWER_IS_BETTER,
    as_csv,
    as_latex,
    ranks,
    table_caption,
    tabulate,
)

__all__ = ["Section", "build_section"]

# Columns that sum up the others.
SUMMARY_COLUMNS = (
    "mean",
    "worst",
    "worst 10 %",
    "spread",
    "in-domain",
    "known domain",
    *CONFIDENCE_COLUMNS,
)
# Beyond so many points none of them says what it is.
MAX_TITLED_POINTS = 1500
VERDICTS = {
    "better": ("better", "good"),
    "worse": ("worse", "bad"),
    "unclear": ("may be chance", ""),
    "level": ("the same", ""),
    "too few": ("too few to tell", ""),
}


@dataclass(frozen=True)
class Section:
    """All that is shown of one benchmark."""

    id: str
    benchmark: Results
    headline: Headline
    frame: pd.DataFrame
    numbers: Mapping[str, Mark]
    rules: Sequence[Mapping[str, Any]] = ()
    forest: ForestPlot | None = None
    curves: Mapping[str, Any] | None = None
    gaps: Mapping[str, Any] | None = None
    gaps_note: str = ""
    panels: Sequence[Panel] = ()
    agreement: str = ""
    settings: Mapping[str, Sequence[Panel]] = field(default_factory=dict)
    costs: Sequence[Mapping[str, Any]] = ()
    one: float = 0.0
    commands: Sequence[Mapping[str, Any]] = ()
    reference: str = ""
    several_references: bool = False
    summaries: Sequence[str] = SUMMARY_COLUMNS
    low: Sequence[str] = LOWER_IS_BETTER

    @property
    def title(self) -> str:
        """The dataset's name."""
        return self.benchmark.title

    @property
    def many(self) -> bool:
        """Whether many domains are held out."""
        return self.benchmark.many

    @property
    def methods(self) -> list[Mark]:
        """The marks of all rows."""
        return list(self.numbers.values())

    @property
    def bound(self) -> str:
        """The name of what has seen the target, if it is there."""
        return UPPER_BOUND if any(mark.bound for mark in self.methods) else ""

    @property
    def memory(self) -> bool:
        """Whether any run's memory is known."""
        return any(each["own"].memory for each in self.costs)

    @property
    def merged(self) -> bool:
        """Whether some models are merged."""
        return any(records[0].run.role for records in self.benchmark.methods.values())

    @property
    def titled(self) -> bool:
        """Whether there are so few points that each can say what it is."""
        panels = [*self.panels, *(each for own in self.settings.values() for each in own)]
        return sum(len(panel.points) for panel in panels) <= MAX_TITLED_POINTS

    @property
    def file(self) -> str:
        """A name for files that are downloaded."""
        return re.sub(r"[^\w.-]+", "_", self.title, flags=re.ASCII).strip("_.") or "tables"

    @property
    def csv(self) -> str:
        """All tables as CSV, in base64."""
        return _encoded(as_csv(self.frame) + "\n")

    @property
    def latex(self) -> str:
        """All tables as LaTeX, in base64."""
        return _encoded(as_latex(self.frame) + "\n")

    @property
    def facts(self) -> str:
        """How much was run, in a line."""
        records = [record for own in self.benchmark.methods.values() for record in own]
        counts = {
            "method": len([mark for mark in self.methods if not mark.bound]),
            "unseen domain": len(self.benchmark.domains),
            "trial": len({record.run.trial for record in records}),
            "draw": len({record.run.draw for record in records}),
            "run": len(records),
        }
        return ", ".join(f"{n} {what}{'s' * (n != 1)}" for what, n in counts.items()) + "."

    @property
    def curves_note(self) -> str:
        """What the lines are."""
        runs = self.curves["runs"] if self.curves else []
        if any(run["p"] == "sample" for run in runs):
            return (
                "Sources: their probe parts. Unseen*: a sample of at most 64 of the main part; "
                "marks of picks stand at the whole of it, which is read where rules need it."
            )
        return "Sources: their probe parts. Unseen: the main part."


def build_section(
    number: int, results: Results, records: Sequence[Record], rerun_store: str
) -> Section:
    """What is shown of a benchmark; `records` are all of the store, `again` another store."""
    frame = tabulate([record for own in results.methods.values() for record in own])
    # Titles of several datasets may need more than a table of one alone would say.
    frame = frame.assign(dataset=results.title)
    rule = leading_rule(frame)
    numbers = _marks(results, frame, rule)
    against = references(results)
    told = build_headline(results, frame)
    rules = sorted(dict.fromkeys(frame["rule"]), key=lambda each: each != rule)
    curves = curve_data(results, rules, numbers)
    gaps, gaps_told = _gaps(results, rules, numbers)
    panels, drawn = validation_panels(results), setting_panels(results)
    weighed, one = _costs(results, records, numbers)
    return Section(
        id=f"d{number}",
        benchmark=results,
        headline=told,
        frame=frame,
        numbers=numbers,
        rules=[_rule(each, results, frame, numbers) for each in rules],
        forest=build_forest_plot(results, frame, rule, told.best) if rule else None,
        curves=curves,
        gaps=gaps,
        gaps_note=gaps_told,
        panels=panels if any(panel.points for panel in panels) else [],
        agreement=_agreement(results),
        settings={name: drawn[name] for name in numbers if name in drawn},
        costs=weighed,
        one=one,
        commands=_commands(results, numbers, rerun_store),
        reference=REFERENCE if against else "",
        several_references=len(set(against.values())) > 1,
    )


def _marks(benchmark: Results, frame: pd.DataFrame, rule: str) -> dict[str, Mark]:
    """Rows by their mean under the leading rule, the best first; what has none, last."""
    own = frame[(frame["rule"] == rule) & (frame["domain"] == "mean")]
    means = dict(zip(own["method"], own["accuracy"], strict=True))
    ranked = {name: means.get(name, math.nan) for name in benchmark.methods}
    names = sorted(ranked, key=lambda name: (math.isnan(ranked[name]), -ranked[name], name))
    return {name: Mark(name, n, bound=name.startswith(UPPER_BOUND)) for n, name in enumerate(names)}


def _rule(
    rule: str, benchmark: Results, frame: pd.DataFrame, numbers: Mapping[str, Mark]
) -> dict[str, Any]:
    """The table of one rule, and its comparisons."""
    part = frame[frame["rule"] == rule]
    columns = list(dict.fromkeys(part["domain"]))
    places = ranks(part)
    rows: list[dict[str, Any]] = []
    for method, own in part.groupby("method", sort=False):
        found = own.set_index("domain")
        cells = [
            _cell(found.loc[column], places.get((str(method), column), 0))
            if column in found.index
            else _cell(None, 0)
            for column in columns
        ]
        rows.append({"method": numbers[str(method)], "cells": cells})
    means = part[part["domain"] == "mean"].set_index("method")["accuracy"].fillna(-math.inf)
    rows.sort(key=lambda row: -means[row["method"].name])
    return {
        "name": rule,
        "told": RULES[rule].told,
        "oracle": rule == ORACLE,
        "columns": columns,
        "rows": rows,
        "measured": table_caption(part),
        "comparisons": [_compared(each, numbers) for each in comparisons(benchmark, rule)],
    }


def _cell(row: Any, place: int) -> dict[str, Any]:
    if row is None or math.isnan(row["accuracy"]):
        return {"value": "", "number": "–", "spread": "", "place": 0}
    spread = "" if math.isnan(row["stderr"]) else f"{100 * row['stderr']:.1f}"
    accuracy = row["accuracy"]
    number = f"{100 * accuracy:.1f}"
    return {"value": f"{accuracy:.6f}", "number": number, "spread": spread, "place": place}


def _compared(own: Comparison, numbers: Mapping[str, Mark]) -> dict[str, Any]:
    verdict, tone = VERDICTS[own.verdict]
    return {"method": numbers[own.method], "own": own, "verdict": verdict, "tone": tone}


def _gaps(
    benchmark: Results, rules: Sequence[str], numbers: Mapping[str, Mark]
) -> tuple[dict[str, Any] | None, str]:
    """How far picks are from the best there was, by method and rule; and what it was read off."""
    means, exact = gap_means(benchmark, rules)
    known = [rule for rule in rules if any(rule in own for own in means.values())]
    if not known:
        return None, ""
    rows = [
        {"method": mark, "cells": [means[name].get(rule, math.nan) for rule in known]}
        for name, mark in numbers.items()
        if means.get(name)
    ]
    told = {
        frozenset({True}): "Read off the whole main part.",
        frozenset({False}): "Read off a sample of at most 64, whose best reading is partly luck: "
        "the true gap is smaller.",
    }
    mixed = "Read off the whole main part, or where that was not read, off a sample of it."
    return {"rules": known, "rows": rows}, told.get(frozenset(exact), mixed)


def _agreement(benchmark: Results) -> str:
    found = validation_rank_correlation(benchmark)
    if found is None:
        return ""
    told = f"{found:+.2f}".replace("-", "−")
    return (
        f"Among the draws of one method, trial and target, the ranks of the two agree by {told} in "
        "the mean (Spearman’s correlation; 1 would be a perfect guide, 0 none)."
    )


def _costs(
    benchmark: Results, records: Sequence[Record], numbers: Mapping[str, Mark]
) -> tuple[list[dict[str, Any]], float]:
    """The costs with a bar for each, the dearest last; and where bars of the reference end."""
    known = sorted(method_costs(benchmark, records), key=lambda each: (_ratio(each), each.seconds))
    longest = max((each.times for each in known if each.times), default=1.0)
    rows = [
        {
            "method": numbers[each.method],
            "own": each,
            "bar": round(100 * each.times / longest, 2) if each.times else 0,
        }
        for each in known
    ]
    return rows, round(100 / max(longest, 1.0), 2)


def _ratio(cost: Cost) -> float:
    return math.inf if cost.times is None else cost.times


def _commands(benchmark: Results, numbers: Mapping[str, Mark], again: str) -> list[dict[str, Any]]:
    first = {name: own[0].run for name, own in benchmark.methods.items()}
    merges = [
        run.method for run in first.values() if run.role and run.method not in MERGE_BASELINES
    ]
    beside = merges[0] if merges else "average"
    return [
        {
            "method": mark,
            "command": row_command(benchmark.methods[name], store=again, merge=beside),
        }
        for name, mark in numbers.items()
    ]


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
