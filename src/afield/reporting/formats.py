"""The results table in every format: terminal, Markdown, LaTeX and CSV."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from html import escape

import pandas as pd
from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from afield.errors import UnknownNameError
from afield.files import escape_markdown, guard_formula
from afield.registry import hint
from afield.reporting.claims import (
    ONE_POINT,
    Claim,
    all_claims,
    estimate_power,
    leading_rule,
    typical_power,
)
from afield.reporting.sentences import describe_power, escape_invisible, format_trials
from afield.reporting.table import (
    COLUMNS,
    display_order,
    find_column,
    format_value,
    ranks,
    shown_metric,
    table_caption,
    tabulate,
)
from afield.runs.record import Record
from afield.runs.selection import RULES
from afield.training.metrics import find_metric

# The longest name of a column in a narrow terminal.
MAX_SHORT = 5
CONFIDENCE_COLUMNS = [column.name for column in COLUMNS if column.confidence]
# What the results of a dataset and rule say about the best method, by title and rule.
Claims = Mapping[tuple[str, str], str]


def as_rich(
    frame: pd.DataFrame, width: int | None = None, claims: Claims | None = None
) -> list[Group]:
    """Tables for a terminal, one per dataset, with a section for each rule.

    Mean and worst come first. If `width` is too small, domains are abbreviated and their standard
    errors left out, then the other summaries, then the domains; a note says what is missing. The
    claims are below the table, one line per rule.
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


def as_latex(
    frame: pd.DataFrame,
    claims: Claims | None = None,
    *,
    tested: Mapping[tuple[str, str], Claim] | None = None,
    caption: str = "",
) -> str:
    r"""Tables for a paper (package booktabs), which mark only what is more than chance.

    The mean of a row is bold if it is better than those of all other rows, and has an asterisk if
    it differs from plain training, both with 95 % confidence, corrected for the comparisons. The
    lines of `claims` are comments.

    Parameters
    ----------
    frame, claims
        The table, and a line on the best method of each dataset and rule.
    tested
        The comparisons, by dataset and rule; without them, nothing is marked.
    caption
        Replaces the caption.
    """
    blocks = []
    for title, rule, part in _tables(frame):
        line = (claims or {}).get((title, rule), "")
        claim = (tested or {}).get((title, rule))
        shown = caption or f"{title}, {RULES[rule].description}: {table_caption(part)}"
        blocks.append(f"% {line}\n" * bool(line) + _latex_table(part, claim, shown))
    return "\n\n".join(blocks)


def choose_columns(frame: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """The columns of a table with these names, in this order."""
    known = _columns(frame)
    for name in names:
        if name not in known:
            raise UnknownNameError(f"no column {name!r}; {hint(name, known)}")
    places = {name: place for place, name in enumerate(names)}
    chosen = frame[frame["domain"].isin(names)]
    order = chosen["domain"].map(places)
    methods = chosen["method"].map({m: i for i, m in enumerate(dict.fromkeys(chosen["method"]))})
    keys = chosen.assign(_method=methods, _place=order)
    keys = keys.sort_values(["_method", "_place"], kind="stable")
    groups = [part for _, part in keys.groupby(["dataset", "rule"], sort=False)]
    return pd.concat(groups).drop(columns=["_method", "_place"]) if groups else chosen


def as_html(frame: pd.DataFrame, claims: Claims | None = None) -> str:
    """Plain tables for a notebook, one per dataset and rule: the best in bold."""
    blocks = []
    for title, rule, part in _tables(frame):
        cells, columns = _cells(part, best="<b>{}</b>".format, second="{}".format)
        head = "".join(f"<th>{escape(name)}</th>" for name in ("method", *columns))
        rows = [
            f"<tr><td>{escape(method)}</td>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>"
            for method, row in cells.items()
        ]
        caption = f"{title}, {RULES[rule].description}: {table_caption(part)}"
        blocks.append(f"<p>{escape(caption)}</p><table><thead><tr>{head}</tr></thead>")
        blocks.append(f"<tbody>{''.join(rows)}</tbody></table>")
        blocks.append(f"<p>{escape((claims or {}).get((title, rule), ''))}</p>")
    return "".join(blocks)


def as_csv(frame: pd.DataFrame, claims: Claims | None = None) -> str:
    """All numbers, one per line; no claims."""
    return (
        frame.drop(columns=["sees", "pretrained"], errors="ignore")
        .map(guard_formula)
        .to_csv(index=False)
        .rstrip("\n")
    )


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
    columns = _columns(frame)
    cells: dict[str, list[str]] = {method: [] for method in dict.fromkeys(frame["method"])}
    ranked, metric = ranks(frame), find_metric(shown_metric(frame))
    for name, rows in frame.groupby("domain", sort=False):
        number = partial(format_value, column=find_column(str(name)), metric=metric)
        numbers = zip(rows["method"], rows["accuracy"], rows["stderr"], strict=True)
        for method, accuracy, stderr in numbers:
            text = _format_cell(accuracy, stderr, sign, number)
            rank = ranked.get((method, str(name)))
            cells[method].append((best, second)[rank - 1](text) if rank else text)
    return cells, columns


def _format_cell(accuracy: float, stderr: float, sign: str, number: Callable[[float], str]) -> str:
    has_error = not math.isnan(accuracy) and not math.isnan(stderr)
    return f"{number(accuracy)}{sign}{number(stderr)}" if has_error else number(accuracy)


def _rich_claims(title: str, frame: pd.DataFrame, claims: Claims) -> list[Text]:
    lines = {rule: claims.get((title, rule), "") for rule, _ in _split(frame, "rule")}
    return [Text(f"{rule}: {line}") for rule, line in lines.items() if line]


def _rich_table(title: str, frame: pd.DataFrame, width: int | None) -> list[RenderableType]:
    """Title, table and rules; rich would wrap a title of the table itself at the table's width."""
    ordered = frame.assign(
        place=frame["domain"].map({n: i for i, n in enumerate(display_order(_columns(frame)))})
    ).sort_values("place", kind="stable")
    table, shown, notes = _fitting_grid(ordered, width)
    caption = Text(f"{title}: {table_caption(shown)}", style="italic")
    rules = [f"{rule}: {RULES[rule].description}" for rule in dict.fromkeys(frame["rule"])]
    return [caption, table, Text("\n".join([*notes, *rules]), style="italic")]


def _columns(frame: pd.DataFrame) -> list[str]:
    """The columns of a table, in their order."""
    return list(dict.fromkeys(frame["domain"]))


def _fitting_grid(frame: pd.DataFrame, width: int | None) -> tuple[Table, pd.DataFrame, list[str]]:
    """The table with the most columns that fits, its part of the frame, and what is left out."""
    table = _grid(frame)
    if width is None or _width(table) <= width:
        return table, frame, []
    columns = _columns(frame)
    domains = {name for name in columns if find_column(name) is None}
    named = domains if len(domains) < len(columns) else set()
    kept = [
        name for name in columns if name == "mean" or getattr(find_column(name), "lowest", False)
    ]
    rest = [name for name in columns if name not in kept and name not in domains]
    for left_out, short in _attempts(rest, [name for name in columns if name in domains], named):
        part = frame[~frame["domain"].isin(left_out)]
        table = _grid(part, names=short, bare={*domains, *rest})
        if _width(table) <= width:
            break
    notes = [f"{brief}: {name}" for name, brief in short.items() if brief != name]
    legend = [", ".join(notes)] if notes else []
    hides_domains = bool(domains & set(left_out))
    missing = [name for name in left_out if name not in domains]
    missing += [f"the {len(domains)} domains"] if hides_domains else []
    missing += ["± of the other columns"] if len(left_out) < len(domains) + len(rest) else []
    more = f"not shown: {', '.join(missing)}; a wider terminal or --format md shows all"
    return table, part, [*([] if hides_domains else legend), *([more] if missing else [])]


def _attempts(
    rest: Sequence[str], domains: Sequence[str], named: Collection[str]
) -> Iterator[tuple[list[str], dict[str, str]]]:
    """What to leave out, and names of domains: as long as they fit before more is left out."""
    lengths = sorted({len(name) for name in named}, reverse=True) or [0]
    for left_out in _left_out(rest, domains):
        for length in range(lengths[0], MAX_SHORT, -1):
            cut = {name: name[:length].rstrip() for name in named}
            if len(set(cut.values())) == len(cut):
                yield left_out, cut
        yield left_out, abbreviate(named)


def _left_out(rest: Sequence[str], domains: Sequence[str]) -> Iterator[list[str]]:
    """What to leave out, more and more: confidence, other summaries, domains."""
    yield []
    yield [name for name in rest if name in CONFIDENCE_COLUMNS]
    yield list(rest)
    yield [*rest, *domains]


def abbreviate(names: Iterable[str]) -> dict[str, str]:
    """Short names for narrow columns: the first letters, as few as tell them apart.

    >>> abbreviate(["art_painting", "cartoon", "photo"])
    {'art_painting': 'art', 'cartoon': 'car', 'photo': 'pho'}
    """
    every = sorted(names)
    if all(len(name) <= MAX_SHORT for name in every):
        return {name: name for name in every}
    for length in range(3, MAX_SHORT + 1):
        if len({name[:length] for name in every}) == len(every):
            return {name: name[:length] for name in every}
    return {name: f"{name[:2]}{number}" for number, name in enumerate(every, start=1)}


def _width(table: Table) -> int:
    return Console(width=10_000).measure(table).maximum


def _grid(
    frame: pd.DataFrame, *, names: Mapping[str, str] | None = None, bare: Collection[str] = ()
) -> Table:
    """A row per method and a column per domain; `bare` columns have no standard errors."""
    rules = _split(frame, "rule")
    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0) if bare else (0, 1))
    longest = max(len(name) for rule, part in rules for name in [*part["method"], f"{rule}:"])
    table.add_column("method", min_width=min(longest, 24), overflow="fold")
    for name in _columns(frame):
        # Two lines are as wide as the numbers below them.
        header = (names or {}).get(name, name.replace(" ", "\n", name in CONFIDENCE_COLUMNS))
        header = header.replace("-", "-\n") if name in bare else header
        table.add_column(Text(header), justify="right")
    without = frame.assign(stderr=frame["stderr"].where(~frame["domain"].isin(list(bare))))
    for rule, part in _split(without, "rule"):
        # No space after the sign: a narrow terminal breaks the cell before it.
        cells, _ = _cells(part, best="[bold]{}[/]".format, second="[u]{}[/]".format, sign=" ±")
        table.add_section()
        if len(rules) > 1:
            table.add_row(Text(f"{rule}:", style="italic"))
        for name, row in cells.items():
            table.add_row(Text(name), *row)
    return table


def _latex_table(frame: pd.DataFrame, claim: Claim | None, caption: str) -> str:
    cells, columns = _cells(frame, best=str, second=str, sign=r" $\pm$ ")
    notes = _mark_tested(cells, columns, claim) if claim else ""
    lines = [["method", *map(_escape_latex, columns)]]
    lines += [[_escape_latex(method), *row] for method, row in cells.items()]
    head, *body = [" & ".join(line) + r" \\" for line in lines]
    return "\n".join(
        [
            r"\begin{table}",
            rf"\caption{{{_escape_latex(caption.removesuffix('.'))}.{notes}}}",
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


def _mark_tested(cells: dict[str, list[str]], columns: Sequence[str], claim: Claim) -> str:
    """Mark the means that are more than chance, in place; returns what the marks mean."""
    if "mean" not in columns:
        return ""
    place, notes = columns.index("mean"), ""
    differs = [
        each.method
        for each in claim.comparisons
        if each.reference in claim.plain and each.verdict in ("better", "worse")
    ]
    for method in differs:
        if method in cells:
            cells[method][place] += "$^{*}$"
            notes = r" $^{*}$: differs from plain training"
    if list(claim.possible_best) == [claim.leader] and claim.is_more_than_chance:
        cells[claim.leader][place] = rf"\textbf{{{cells[claim.leader][place]}}}"
        notes += (";" if notes else "") + " bold: better than all other rows"
    return f"{notes} (95\\,\\% confidence, corrected for the comparisons)." if notes else ""


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


def as_power_table(
    records: Sequence[Record], rules: Sequence[str] = (), difference: float = ONE_POINT
) -> list[RenderableType]:
    """A title, a table and a sentence for each dataset.

    The rule of the report's headline is used by default. `difference` is the share for which the
    number of trials is computed.
    """
    frame = tabulate(records, rules=rules or None)
    wanted = {
        (title, rule)
        for title, part in _split(frame, "dataset")
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
    asked = f"{100 * difference:g} point" + "s" * (difference != ONE_POINT)
    for name in ("difference", "standard\nerror", "detectable\nat 80 %", f"trials for\n{asked}"):
        table.add_column(Text(name), justify="right")
    for each in claim.comparisons:
        power = estimate_power(each)
        trials = format_trials(power.trials_for(difference), noun="") if power.known else "–"
        numbers = (each.difference, each.stderr, power.detectable)
        names = (Text(escape_invisible(name)) for name in (each.method, each.reference))
        points = ("–" if math.isnan(n) else f"{100 * n:.2f}".replace("-", "−") for n in numbers)
        table.add_row(*names, *points, trials)
    return table
