"""From records to tables: accuracy on each unseen domain, their mean, the worst of them.

Every number is a mean over trials, ± its standard error: the deviation over trials (n - 1 in its
denominator) over √n. `mean` and `worst` are taken over the domains within a trial, then averaged.
`in-domain` is the accuracy of the same checkpoints on the sources' probe parts, averaged over
sources and targets; `known domain` is that where the model is told the source, if it can use that.
`calibration error` and `accuracy at 90 %` (coverage) are of the unseen domains again, as `Score`
has them, averaged over the targets of a trial.
Where a share of many domains was held out, other ones in every trial, there is no column for each:
the mean over them, over the worst tenth of them, and their `spread`, the deviation over domains.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import pandas as pd
from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from afield.experiments.record import Record
from afield.experiments.selection import RULES, resolve_rules
from afield.reporting.results import UPPER_BOUND, Picks, group_records

__all__ = [
    "CONFIDENCE_COLUMNS",
    "FORMATS",
    "LOWER_IS_BETTER",
    "as_csv",
    "as_latex",
    "as_markdown",
    "as_rich",
    "ranks",
    "table_caption",
    "tabulate",
]

MISSING = "–"
_OTHER = {"method": "domain", "domain": "method"}
# What is a mean over the targets of a trial, and what a pick calls it.
MEAN_COLUMNS = {
    "in-domain": "in_domain",
    "known domain": "known",
    "calibration error": "calibration_error",
    "accuracy at 90 %": "accuracy_at_90",
}
CONFIDENCE_COLUMNS = ("calibration error", "accuracy at 90 %")
# Of these the least is best.
LOWER_IS_BETTER = ("spread", "calibration error")
COLUMNS = ["dataset", "rule", "method", "domain", "accuracy", "stderr", "trials", "draws"]


def tabulate(
    records: Iterable[Record], *, rules: str | Sequence[str] | None = None
) -> pd.DataFrame:
    """One row for each dataset, rule, method and unseen domain, or ``mean``, ``worst``, and others.

    Rules for which the records do not suffice have no rows.

    >>> list(tabulate([]).columns)
    ['dataset', 'rule', 'method', 'domain', 'accuracy', 'stderr', 'trials', 'draws']
    """
    wanted = resolve_rules([rules] if isinstance(rules, str) else rules or list(RULES))
    rows: list[tuple[object, ...]] = []
    for benchmark in group_records(records):
        summarised = _of_many if benchmark.many else _summarised
        for rule in wanted:
            picks = benchmark.picks(rule)
            means = {
                name: what
                for name, what in MEAN_COLUMNS.items()
                if any(_values(own, what).notna().any(axis=None) for own in picks.values())
            }
            for method, own in picks.items():
                found = [
                    *summarised(_values(own, "accuracy"), benchmark.domains),
                    *_means(own, means, many=benchmark.many),
                ]
                draws = len({record.run.draw for record in benchmark.methods[method]})
                rows += [(benchmark.title, rule, method, *cells, draws) for cells in found]
    return pd.DataFrame(rows, columns=COLUMNS)


def as_rich(frame: pd.DataFrame, width: int | None = None) -> list[Group]:
    """Tables for a terminal, one a dataset with a section for each rule.

    Where its width has no room for a column for each domain, domains are rows, methods columns;
    and where that has no room either, what says how far confidence can be trusted is left out.
    """
    return [_rich_table(title, part, width) for title, part in _parts(frame, "dataset")]


def as_markdown(frame: pd.DataFrame) -> str:
    """GitHub's tables, one for each dataset and rule; the best in bold, the second in italics."""
    blocks = []
    for title, rule, part in _pages(frame):
        cells, domains = _cells(part, best="**{}**".format, second="*{}*".format)
        lines = [["method", *domains], ["---"] * (len(domains) + 1)]
        lines += [[method, *row] for method, row in cells.items()]
        rows = ["| " + " | ".join(_piped(line)) + " |" for line in lines]
        blocks.append(
            "\n".join([f"**{title}**, {RULES[rule].told}: {table_caption(part)}", "", *rows])
        )
    return "\n\n".join(blocks)


def as_latex(frame: pd.DataFrame) -> str:
    r"""Tables for a paper (package booktabs): the best in bold, the second underlined."""
    blocks = []
    for title, rule, part in _pages(frame):
        cells, domains = _cells(
            part, best=r"\textbf{{{}}}".format, second=r"\underline{{{}}}".format, sign=r" $\pm$ "
        )
        head = " & ".join(["method", *map(_escaped, domains)])
        body = [" & ".join([_escaped(method), *row]) + r" \\" for method, row in cells.items()]
        caption = f"{title}, {RULES[rule].told}: {table_caption(part)}"
        blocks.append(
            "\n".join(
                [
                    r"\begin{table}",
                    rf"\caption{{{_escaped(caption)}.}}",
                    r"\centering",
                    rf"\begin{{tabular}}{{l{'c' * len(domains)}}}",
                    r"\toprule",
                    head + r" \\",
                    r"\midrule",
                    *body,
                    r"\bottomrule",
                    r"\end{tabular}",
                    r"\end{table}",
                ]
            )
        )
    return "\n\n".join(blocks)


def as_csv(frame: pd.DataFrame) -> str:
    """All numbers, one a line."""
    return frame.to_csv(index=False).rstrip("\n")


def table_caption(frame: pd.DataFrame) -> str:
    """What the numbers of a table are."""
    # Not every method can use a known domain, and older records lack some numbers.
    there = frame[~frame["domain"].isin(("known domain", *CONFIDENCE_COLUMNS))]
    trials, draws = _counted(there["trials"], "trial"), _counted(frame["draws"], "draw")
    several = frame["trials"].max() > 1
    spread = f"± standard error over {trials}" if several else f"{trials}: no spread known"
    best = f", best of {draws}" if frame["draws"].max() > 1 else ""
    home = "; in-domain: on the sources' probe parts"
    if frame["method"].str.startswith(UPPER_BOUND).any():
        home += f"; {UPPER_BOUND}: trained on the target, read on its probe part"
    trust = ""
    if frame["domain"].isin(CONFIDENCE_COLUMNS).any():
        trust = f", with {' (least is best) and '.join(CONFIDENCE_COLUMNS)} coverage"
    return f"accuracy (%) on unseen domains, {spread}{best}{trust}{home}"


FORMATS: dict[str, Callable[[pd.DataFrame], str]] = {
    "md": as_markdown,
    "latex": as_latex,
    "csv": as_csv,
}


SummaryCells = tuple[str, float, float, int]


def _values(picks: Picks, what: str) -> pd.DataFrame:
    """One row a trial, one column a domain, NaN where there is no pick."""
    numbers = {
        trial: {domain: getattr(pick, what, None) for domain, pick in own.items()}
        for trial, own in picks.items()
    }
    return pd.DataFrame.from_dict(numbers, orient="index").astype(float)


def _summarised(outcomes: pd.DataFrame, domains: Sequence[str]) -> list[SummaryCells]:
    """Mean, standard error and number of trials for each domain, for their mean and the worst."""
    whole = outcomes.dropna()
    columns: dict[str, pd.Series[float]]
    columns = {domain: outcomes[domain].dropna() for domain in domains}
    columns |= {"mean": whole.mean(axis=1), "worst": whole.min(axis=1)}
    return [
        (name, float(values.mean()), _stderr(values), len(values))
        for name, values in columns.items()
        if outcomes.notna().any(axis=None)
    ]


def _of_many(outcomes: pd.DataFrame, domains: Sequence[str]) -> list[SummaryCells]:
    """The same for a share of many domains: mean, worst tenth and spread over those of a trial."""
    del domains
    known = [row.dropna().sort_values() for _, row in outcomes.iterrows() if row.notna().any()]
    worst = [row.iloc[: max(1, round(len(row) / 10))].mean() for row in known]
    columns = {
        "mean": pd.Series([row.mean() for row in known]),
        "worst 10 %": pd.Series(worst),
        "spread": pd.Series([row.std(ddof=0) for row in known]),
    }
    return [
        (name, float(values.mean()), _stderr(values), len(values))
        for name, values in columns.items()
        if known
    ]


def _means(picks: Picks, columns: Mapping[str, str], *, many: bool) -> list[SummaryCells]:
    """The same for other numbers of the picks, each a mean over the targets of a trial."""
    there = _values(picks, "accuracy").notna()
    # Of many domains, some are targets in each trial.
    whole = there.any(axis=1) if many else there.all(axis=1)
    found = []
    for name, what in columns.items():
        numbers = _values(picks, what)
        known = (numbers.notna() == there).all(axis=1)
        values = numbers[whole & known].mean(axis=1)
        if there.any(axis=None):
            found.append((name, float(values.mean()), _stderr(values), len(values)))
    return found


def _stderr(values: "pd.Series[float]") -> float:
    return float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def _parts(frame: pd.DataFrame, column: str) -> list[tuple[str, pd.DataFrame]]:
    return [(str(name), part) for name, part in frame.groupby(column, sort=False)]


def _pages(frame: pd.DataFrame) -> list[tuple[str, str, pd.DataFrame]]:
    return [
        (title, rule, part)
        for title, of_dataset in _parts(frame, "dataset")
        for rule, part in _parts(of_dataset, "rule")
    ]


def ranks(part: pd.DataFrame) -> dict[tuple[str, str], int]:
    """The places of the best (1) and second (2) in every column of one rule's table.

    Methods whose numbers look alike, rounded as they are shown, share a place.

    >>> rows = [("x", "mean", 0.5), ("y", "mean", 0.9)]
    >>> ranks(pd.DataFrame(rows, columns=["method", "domain", "accuracy"]))
    {('x', 'mean'): 2, ('y', 'mean'): 1}
    """
    found: dict[tuple[str, str], int] = {}
    for domain, column in part.groupby("domain", sort=False):
        numbers = {
            str(method): float(_number(accuracy, math.nan, ""))
            for method, accuracy in zip(column["method"], column["accuracy"], strict=True)
            if not math.isnan(accuracy) and not str(method).startswith(UPPER_BOUND)
        }
        ranked = sorted(set(numbers.values()), reverse=domain not in LOWER_IS_BETTER)
        if len(ranked) > 1:
            places = {number: place for place, number in enumerate(ranked[:2], start=1)}
            found |= {(m, str(domain)): places[n] for m, n in numbers.items() if n in places}
    return found


def _cells(
    part: pd.DataFrame,
    *,
    best: Callable[[str], str],
    second: Callable[[str], str],
    sign: str = " ± ",
) -> tuple[dict[str, list[str]], list[str]]:
    """The cells of one rule's table by method, with the two best of every column marked."""
    domains = list(dict.fromkeys(part["domain"]))
    cells: dict[str, list[str]] = {method: [] for method in dict.fromkeys(part["method"])}
    places = ranks(part)
    for domain in domains:
        column = part[part["domain"] == domain].set_index("method")
        for method, row in column.iterrows():
            text = _number(row["accuracy"], row["stderr"], sign)
            place = places.get((str(method), domain))
            cells[str(method)].append((best, second)[place - 1](text) if place else text)
    return cells, domains


def _number(accuracy: float, stderr: float, sign: str) -> str:
    if math.isnan(accuracy):
        return MISSING
    spread = "" if math.isnan(stderr) else f"{sign}{100 * stderr:.1f}"
    return f"{100 * accuracy:.1f}{spread}"


def _rich_table(title: str, frame: pd.DataFrame, width: int | None) -> Group:
    """Title, table and what the rules are; a table's own title would wrap at the table's width."""
    rules = _parts(frame, "rule")
    table = _grid(rules, turned=False)
    unlimited = Console(width=10_000)

    def wide(table: Table) -> int:
        return unlimited.measure(table).maximum

    if width is not None and wide(table) > width:
        # As it is, a narrow terminal would cut the numbers; turned, it may be wider still.
        table = min(table, _grid(rules, turned=True), key=wide)
    trusted = frame["domain"].isin(CONFIDENCE_COLUMNS)
    if width is not None and wide(table) > width and trusted.any():
        rest = _rich_table(title, frame[~trusted], width)
        more = f"wider, or with --format md: {' and '.join(CONFIDENCE_COLUMNS)}"
        return Group(*rest.renderables, Text(more, style="italic"))
    told = Text("\n".join(f"{rule}: {RULES[rule].told}" for rule, _ in rules), style="italic")
    return Group(Text(f"{title}: {table_caption(frame)}", style="italic"), table, told)


def _grid(rules: Sequence[tuple[str, pd.DataFrame]], *, turned: bool) -> Table:
    """A row for each method and a column for each domain, or the other way round."""
    table = Table(box=box.SIMPLE)
    what = "domain" if turned else "method"
    longest = max(len(name) for rule, part in rules for name in [*part[what], f"{rule}:"])
    table.add_column(what, min_width=min(longest, 24))
    for name in dict.fromkeys(name for _, part in rules for name in part[_OTHER[what]]):
        # Two lines take the width of the numbers below them.
        table.add_column(Text(name.replace(" ", "\n", name in CONFIDENCE_COLUMNS)), justify="right")
    for rule, part in rules:
        # No space after the sign: a narrow terminal breaks the cell before it.
        cells, domains = _cells(
            part, best="[bold]{}[/]".format, second="[u]{}[/]".format, sign=" ±"
        )
        table.add_section()
        if len(rules) > 1:
            table.add_row(Text(f"{rule}:", style="italic"))
        columns = zip(*cells.values(), strict=True)
        rows = zip(domains, columns, strict=True) if turned else cells.items()
        for name, row in rows:
            table.add_row(Text(name), *row)
    return table


def _counted(counts: "pd.Series[int]", what: str) -> str:
    """So many of them, or from so many to so many where rows differ."""
    least, most = int(counts.min()), int(counts.max())
    number = str(most) if least == most else f"{least}–{most}"
    return f"{number} {what}{'s' * (most > 1)}"


def _piped(cells: Sequence[str]) -> list[str]:
    return [cell.replace("|", r"\|") for cell in cells]


def _escaped(text: str) -> str:
    """Text as LaTeX shows it."""
    special = {
        "±": r"$\pm$",
        "–": "--",
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
    }
    return "".join(special.get(c, f"\\{c}" if c in "&%$#_{}" else c) for c in text)
