"""The power of benchmarks as tables for a terminal."""

import math
from collections.abc import Sequence

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from afield.experiments.record import Record
from afield.experiments.selection import RULES
from afield.reporting.headline import describe_power, escape_invisible, format_trials
from afield.reporting.statistics.claim import Claim, all_claims, leading_rule
from afield.reporting.statistics.power import ONE_POINT, estimate_power, typical_power
from afield.reporting.table import tabulate

__all__ = ["as_power_table"]


def as_power_table(
    records: Sequence[Record], rules: Sequence[str] = (), difference: float = ONE_POINT
) -> list[RenderableType]:
    """A title, a table and a sentence for each dataset.

    Parameters
    ----------
    records
        The records of one or more datasets.
    rules
        The selection rules; by default the rule of the report's headline.
    difference
        The difference, as a share, for which the number of trials is computed.
    """
    frame = tabulate(records, rules=rules or None)
    wanted = {
        (str(title), rule)
        for title, part in frame.groupby("dataset", sort=False)
        for rule in rules or [leading_rule(part)]
    }
    claims = {key: claim for key, claim in all_claims(records, frame).items() if key in wanted}
    if not claims:
        return [Text("No method has finished all the runs that the selection rule needs.")]
    parts: list[RenderableType] = []
    for (title, rule), claim in claims.items():
        heading = f"{escape_invisible(title)}, {RULES[rule].description}"
        parts += [Text(heading, style="italic"), *_dataset(claim, difference)]
    return parts


def _dataset(claim: Claim, difference: float) -> list[RenderableType]:
    power = typical_power(claim.comparisons)
    if not claim.comparisons:
        return [Text("Only one method has finished, so there is no comparison.")]
    if power is None:
        return [Text("Cannot tell: two or more trials that differ are needed to see a spread.")]
    return [_table(claim, difference), Text(describe_power(power, difference))]


def _table(claim: Claim, difference: float) -> Table:
    """A row for each comparison; differences in percentage points."""
    table = Table(box=box.SIMPLE)
    table.add_column("method", overflow="fold")
    table.add_column("against", overflow="fold")
    points = f"{100 * difference:g} point" + "s" * (difference != ONE_POINT)
    for name in ("difference", "standard\nerror", "detectable\nat 80 %", f"trials for\n{points}"):
        table.add_column(Text(name), justify="right")
    for each in claim.comparisons:
        power = estimate_power(each)
        trials = format_trials(power.trials_for(difference), noun="") if power.known else "–"
        numbers = (each.difference, each.stderr, power.detectable)
        names = (Text(escape_invisible(name)) for name in (each.method, each.reference))
        table.add_row(*names, *map(_points, numbers), trials)
    return table


def _points(share: float) -> str:
    return "–" if math.isnan(share) else f"{100 * share:.2f}".replace("-", "−")
