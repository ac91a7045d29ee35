"""Gains over the reference by domain: where a method helps and where it hurts."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from afield.reporting.axes import Mark
from afield.reporting.results import Results
from afield.reporting.statistics.comparison import accuracies, references

__all__ = ["Gain", "GainRow", "GainTable", "gains_by_domain"]


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
