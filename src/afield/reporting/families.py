"""The groups of a table's rows: what kind of model a row is, which is also its color on charts."""

import math
from collections.abc import Mapping, Sequence

import pandas as pd

from afield.experiments.merged import MERGE_BASELINES
from afield.experiments.record import Run
from afield.reporting.axes import FAMILIES, Mark
from afield.reporting.results import UPPER_BOUND, Results

__all__ = ["group_by_family", "make_marks", "row_family"]


def row_family(run: Run) -> str:
    """The family of a row, from one of its runs.

    References come with every merge or have seen the target; nobody would ask for them alone.
    """
    if run.method in MERGE_BASELINES:
        return "references"
    if run.adaptation:
        return "adaptations"
    if run.experts:
        return "merges"
    return "training" if run.average == "last" else "averages"


def make_marks(results: Results, frame: pd.DataFrame, rule: str) -> dict[str, Mark]:
    """A mark per method, the best mean under the leading rule first; methods without one last."""
    of_rule = frame[(frame["rule"] == rule) & (frame["domain"] == "mean")]
    means = dict(zip(of_rule["method"], of_rule["accuracy"], strict=True))
    ranked = {name: means.get(name, math.nan) for name in results.methods}
    names = sorted(ranked, key=lambda name: (math.isnan(ranked[name]), -ranked[name], name))
    return {
        name: Mark(
            name,
            number,
            bound=name.startswith(UPPER_BOUND),
            family=row_family(results.methods[name][0].run),
        )
        for number, name in enumerate(names)
    }


def group_by_family(marks: Mapping[str, Mark]) -> dict[str, Sequence[Mark]]:
    """The marks of every family that has rows, in the order of the table."""
    groups = {
        family: [mark for mark in marks.values() if mark.family == family] for family in FAMILIES
    }
    return {family: members for family, members in groups.items() if members}
