"""The results table in every format: terminal, Markdown, LaTeX and CSV."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import pandas as pd
from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from afield.experiments.selection import RULES
from afield.files import escape_markdown, guard_formula
from afield.reporting.table import (
    COLUMNS,
    find_column,
    format_value,
    ranks,
    shown_metric,
    table_caption,
)
from afield.training.metrics import find_metric

__all__ = ["FORMATS", "as_csv", "as_latex", "as_markdown", "as_rich"]

CONFIDENCE_COLUMNS = [column.name for column in COLUMNS if column.confidence]


# What the results of a dataset and rule say about the best method, by title and rule.
Claims = Mapping[tuple[str, str], str]


def as_rich(
    frame: pd.DataFrame, width: int | None = None, claims: Claims | None = None
) -> list[Group]:
    """Tables for a terminal, one per dataset, with a section for each rule.

    If `width` is too small for one column per domain, domains become rows and methods columns. If
    that is too wide as well, the columns about confidence are omitted. The claims are below the
    table, one line per rule.
    """
    return [
        Group(*_rich_table(title, part, width), *_rich_claims(title, part, claims or {}))
        for title, part in _split(frame, "dataset")
    ]


def as_markdown(frame: pd.DataFrame, claims: Claims | None = None) -> str:
    """GitHub's tables, one per dataset and rule: the best in bold, the second in italics."""
    blocks = []
    for title, rule, part in _tables(frame):
        cells, columns = _cells(part, best="**{}**".format, second="*{}*".format)
        lines = [["method", *columns], ["---"] * (len(columns) + 1)]
        lines += [[method, *row] for method, row in cells.items()]
        rows = ["| " + " | ".join(map(escape_markdown, line)) + " |" for line in lines]
        heading = f"**{escape_markdown(title)}**, {RULES[rule].description}: {table_caption(part)}"
        claim = escape_markdown((claims or {}).get((title, rule), ""))
        blocks.append("\n".join([heading, "", *rows, *(["", claim] if claim else [])]))
    return "\n\n".join(blocks)


def as_latex(frame: pd.DataFrame, claims: Claims | None = None) -> str:
    r"""Tables for a paper (package booktabs): the best in bold, the second underlined.

    The claims are comments.
    """
    blocks = []
    for title, rule, part in _tables(frame):
        claim = (claims or {}).get((title, rule), "")
        blocks.append(f"% {claim}\n" * bool(claim) + _latex_table(title, rule, part))
    return "\n\n".join(blocks)


def as_csv(frame: pd.DataFrame, claims: Claims | None = None) -> str:
    """All numbers, one per line; no claims."""
    return frame.map(guard_formula).to_csv(index=False).rstrip("\n")


FORMATS: dict[str, Callable[[pd.DataFrame, Claims | None], str]] = {
    "md": as_markdown,
    "latex": as_latex,
    "csv": as_csv,
}


def _split(frame: pd.DataFrame, column: str) -> list[tuple[str, pd.DataFrame]]:
    return [(str(name), part) for name, part in frame.groupby(column, sort=False)]


def _tables(frame: pd.DataFrame) -> list[tuple[str, str, pd.DataFrame]]:
    """Title, rule and rows of every table."""
    return [
        (title, rule, part)
        for title, of_dataset in _split(frame, "dataset")
        for rule, part in _split(of_dataset, "rule")
    ]


def _cells(
    frame: pd.DataFrame,
    *,
    best: Callable[[str], str],
    second: Callable[[str], str],
    sign: str = " ± ",
) -> tuple[dict[str, list[str]], list[str]]:
    """The cells of one rule's table by method, the two best marked, and the column names."""
    columns = list(dict.fromkeys(frame["domain"]))
    cells: dict[str, list[str]] = {method: [] for method in dict.fromkeys(frame["method"])}
    ranked, metric = ranks(frame), find_metric(shown_metric(frame))
    for name in columns:
        number = partial(format_value, column=find_column(name), metric=metric)
        for method, row in frame[frame["domain"] == name].set_index("method").iterrows():
            text = _format_cell(row["accuracy"], row["stderr"], sign, number)
            rank = ranked.get((str(method), name))
            cells[str(method)].append((best, second)[rank - 1](text) if rank else text)
    return cells, columns


def _format_cell(accuracy: float, stderr: float, sign: str, number: Callable[[float], str]) -> str:
    has_error = not math.isnan(accuracy) and not math.isnan(stderr)
    return f"{number(accuracy)}{sign}{number(stderr)}" if has_error else number(accuracy)


def _rich_claims(title: str, frame: pd.DataFrame, claims: Claims) -> list[Text]:
    lines = {rule: claims.get((title, rule), "") for rule, _ in _split(frame, "rule")}
    return [Text(f"{rule}: {line}") for rule, line in lines.items() if line]


def _rich_table(title: str, frame: pd.DataFrame, width: int | None) -> list[RenderableType]:
    """Title, table and rules; rich would wrap a title of the table itself at the table's width."""
    rules = _split(frame, "rule")
    table = _grid(rules, transposed=False)
    if width is not None and _width(table) > width:
        # A narrow terminal would cut the numbers; transposed, the table may be wider still.
        table = min(table, _grid(rules, transposed=True), key=_width)
    about_confidence = frame["domain"].isin(CONFIDENCE_COLUMNS)
    if width is not None and _width(table) > width and about_confidence.any():
        rest = _rich_table(title, frame[~about_confidence], width)
        more = f"{' and '.join(CONFIDENCE_COLUMNS)}: in a wider terminal, or with --format md"
        return [*rest, Text(more, style="italic")]
    legend = Text(
        "\n".join(f"{rule}: {RULES[rule].description}" for rule, _ in rules), style="italic"
    )
    return [Text(f"{title}: {table_caption(frame)}", style="italic"), table, legend]


def _width(table: Table) -> int:
    return Console(width=10_000).measure(table).maximum


def _grid(rules: Sequence[tuple[str, pd.DataFrame]], *, transposed: bool) -> Table:
    """A row per method and a column per domain, or the other way round."""
    table = Table(box=box.SIMPLE)
    rows, columns = ("domain", "method") if transposed else ("method", "domain")
    longest = max(len(name) for rule, part in rules for name in [*part[rows], f"{rule}:"])
    table.add_column(rows, min_width=min(longest, 24))
    for name in dict.fromkeys(name for _, part in rules for name in part[columns]):
        # Two lines are as wide as the numbers below them.
        header = name.replace(" ", "\n", name in CONFIDENCE_COLUMNS)
        table.add_column(Text(header), justify="right")
    for rule, part in rules:
        # No space after the sign: a narrow terminal breaks the cell before it.
        cells, domains = _cells(
            part, best="[bold]{}[/]".format, second="[u]{}[/]".format, sign=" ±"
        )
        table.add_section()
        if len(rules) > 1:
            table.add_row(Text(f"{rule}:", style="italic"))
        by_domain = zip(domains, zip(*cells.values(), strict=True), strict=True)
        for name, row in by_domain if transposed else cells.items():
            table.add_row(Text(name), *row)
    return table


def _latex_table(title: str, rule: str, frame: pd.DataFrame) -> str:
    cells, columns = _cells(
        frame, best=r"\textbf{{{}}}".format, second=r"\underline{{{}}}".format, sign=r" $\pm$ "
    )
    lines = [["method", *map(_escape_latex, columns)]]
    lines += [[_escape_latex(method), *row] for method, row in cells.items()]
    head, *body = [" & ".join(line) + r" \\" for line in lines]
    caption = f"{title}, {RULES[rule].description}: {table_caption(frame)}"
    return "\n".join(
        [
            r"\begin{table}",
            rf"\caption{{{_escape_latex(caption)}.}}",
            r"\centering",
            rf"\begin{{tabular}}{{l{'c' * len(columns)}}}",
            r"\toprule",
            head,
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
    )


def _escape_latex(text: str) -> str:
    special = {
        "±": r"$\pm$",
        "–": "--",
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
    }
    line = " ".join(text.split())
    return "".join(special.get(c, f"\\{c}" if c in "&%$#_{}" else c) for c in line)
