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
from pathlib import Path

import pandas as pd
from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from afield.record import Record, Run
from afield.selection import RULES, Pick, checked_rules

__all__ = [
    "FORMATS",
    "as_csv",
    "as_latex",
    "as_markdown",
    "as_rich",
    "common_settings",
    "label",
    "tabulate",
]

MISSING = "–"
# It has seen the target: a yardstick, not to be marked as best.
BOUND = "target_expert"
_OTHER = {"method": "domain", "domain": "method"}
# What is a mean over the targets of a trial, and what a pick calls it.
MEANS = {
    "in-domain": "in_domain",
    "known domain": "known",
    "calibration error": "calibration_error",
    "accuracy at 90 %": "accuracy_at_90",
}
TRUST = ("calibration error", "accuracy at 90 %")
# Of these the least is best.
LOW = ("spread", "calibration error")
COLUMNS = ["dataset", "rule", "method", "domain", "accuracy", "stderr", "trials", "draws"]


def tabulate(
    records: Iterable[Record], *, rules: str | Sequence[str] | None = None
) -> pd.DataFrame:
    """One row for each dataset, rule, method and unseen domain, or ``mean``, ``worst``, and others.

    Rules for which the records do not suffice have no rows.

    >>> list(tabulate([]).columns)
    ['dataset', 'rule', 'method', 'domain', 'accuracy', 'stderr', 'trials', 'draws']
    """
    wanted = checked_rules([rules] if isinstance(rules, str) else rules or list(RULES))
    datasets: dict[str, list[Record]] = {}
    for record in records:
        if record.run.role in ("base", "expert"):
            continue
        known = f"{record.run.data or record.run.dataset}{_held_out(record)}"
        datasets.setdefault(known, []).append(record)
    first = [of_dataset[0] for of_dataset in datasets.values()]
    rows: list[tuple[object, ...]] = []
    for title, of_dataset in zip(_titles(first), datasets.values(), strict=True):
        domains, methods = _targets(of_dataset), _by_label(of_dataset)
        many = bool(of_dataset[0].run.tested)
        summarised = _of_many if many else _summarised
        for rule in wanted:
            picks = {method: _picks(rule, own, domains) for method, own in methods.items()}
            means = {
                name: what
                for name, what in MEANS.items()
                if any(_values(own, what).notna().any(axis=None) for own in picks.values())
            }
            for method, own in picks.items():
                found = [
                    *summarised(_values(own, "accuracy"), domains),
                    *_means(own, means, many=many),
                ]
                draws = len({record.run.draw for record in methods[method]})
                rows += [(title, rule, method, *cells, draws) for cells in found]
    return pd.DataFrame(rows, columns=COLUMNS)


def label(run: Run, *, but: Iterable[str] = ()) -> str:
    """The row of a run: its method, what is deployed, and what was chosen by hand."""
    words = [run.method] if run.average == "last" else [run.method, f"+ {run.average}"]
    for name, value in _chosen(run).items():
        if name not in but:
            short = name.removeprefix(f"{run.method}.").removeprefix(f"{run.average}.")
            words.append(f"{short}={value}")
    return " ".join(words)


def common_settings(runs: Iterable[Run]) -> set[str]:
    """What is alike in all runs: it is not repeated in every label."""
    chosen = [{(name, str(value)) for name, value in _chosen(run).items()} for run in runs]
    return {name for name, _ in set.intersection(*chosen)}


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
        blocks.append("\n".join([f"**{title}**, {RULES[rule].told}: {_measured(part)}", "", *rows]))
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
        blocks.append(
            "\n".join(
                [
                    r"\begin{table}",
                    rf"\caption{{{_escaped(f'{title}, {RULES[rule].told}: {_measured(part)}')}.}}",
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


FORMATS: dict[str, Callable[[pd.DataFrame], str]] = {
    "md": as_markdown,
    "latex": as_latex,
    "csv": as_csv,
}


def _chosen(run: Run) -> dict[str, object]:
    """What no draw changes: records that differ in it are different rows."""
    known = {"backbone": run.backbone, "steps": run.steps, **run.given}
    if "weights" in known and run.start:
        known["weights"] = f"{Path(run.weights).name} [{run.start[:6]}]"
    return known


def _held_out(record: Record) -> str:
    """How many domains are held out to test and to validate on, in words."""
    if not record.run.tested:
        return ""
    tested, validating = len(record.run.tested), len(record.unseen) - len(record.run.tested)
    told = f", {tested} domain{'s' * (tested > 1)} held out"
    return told + f", {validating} validating" * bool(validating)


def _titles(records: Sequence[Record]) -> list[str]:
    """Names of datasets; of own data the file's, with path and state where two have the same."""
    runs = [record.run for record in records]
    names = [Path(run.dataset).name.removesuffix(".npz") for run in runs]
    states = {(name, run.data) for name, run in zip(names, runs, strict=True)}
    twice = {name for name in names if sum(name == known for known, _ in states) > 1}
    titles = [
        f"{run.dataset} [{run.data[:6]}]" if run.data and name in twice else name
        for name, run in zip(names, runs, strict=True)
    ]
    return [title + _held_out(record) for title, record in zip(titles, records, strict=True)]


def _targets(records: Sequence[Record]) -> list[str]:
    """All domains, if one was left out alone: where one is missing, nobody shall overlook it."""
    if records[0].run.tested:
        return list(dict.fromkeys(name for record in records for name in record.run.tested))
    alone = any(len(record.unseen) == 1 for record in records)
    return list(records[0].domains) if alone else []


def _by_label(records: Sequence[Record]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    common = common_settings(record.run for record in records)
    for record in records:
        found.setdefault(label(record.run, but=common), []).append(record)
    return found


Picks = dict[int, dict[str, Pick | None]]
Cells = tuple[str, float, float, int]


def _picks(rule: str, records: Sequence[Record], domains: Sequence[str]) -> Picks:
    """What the rule picks for each trial and domain, if it can."""
    found: Picks = {}
    for trial in sorted({record.run.trial for record in records}):
        of_trial = [record for record in records if record.run.trial == trial]
        found[trial] = {domain: RULES[rule].pick(of_trial, domain) for domain in domains}
    return found


def _values(picks: Picks, what: str) -> pd.DataFrame:
    """One row a trial, one column a domain, NaN where there is no pick."""
    numbers = {
        trial: {domain: getattr(pick, what, None) for domain, pick in own.items()}
        for trial, own in picks.items()
    }
    return pd.DataFrame.from_dict(numbers, orient="index").astype(float)


def _summarised(outcomes: pd.DataFrame, domains: Sequence[str]) -> list[Cells]:
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


def _of_many(outcomes: pd.DataFrame, domains: Sequence[str]) -> list[Cells]:
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


def _means(picks: Picks, columns: Mapping[str, str], *, many: bool) -> list[Cells]:
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
    for domain in domains:
        column = part[part["domain"] == domain].set_index("method")
        shown = {
            method: _number(value, math.nan, sign) for method, value in column["accuracy"].items()
        }
        order = 1 if domain in LOW else -1
        compared = {text for method, text in shown.items() if not method.startswith(BOUND)}
        ranked = sorted(compared - {MISSING}, key=float)[::order]
        for method, row in column.iterrows():
            text = _number(row["accuracy"], row["stderr"], sign)
            if len(ranked) > 1 and shown[method] in ranked[:2] and not method.startswith(BOUND):
                text = (best, second)[ranked.index(shown[method])](text)
            cells[str(method)].append(text)
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
    trusted = frame["domain"].isin(TRUST)
    if width is not None and wide(table) > width and trusted.any():
        rest = _rich_table(title, frame[~trusted], width)
        more = f"wider, or with --format md: {' and '.join(TRUST)}"
        return Group(*rest.renderables, Text(more, style="italic"))
    told = Text("\n".join(f"{rule}: {RULES[rule].told}" for rule, _ in rules), style="italic")
    return Group(Text(f"{title}: {_measured(frame)}", style="italic"), table, told)


def _grid(rules: Sequence[tuple[str, pd.DataFrame]], *, turned: bool) -> Table:
    """A row for each method and a column for each domain, or the other way round."""
    table = Table(box=box.SIMPLE)
    what = "domain" if turned else "method"
    longest = max(len(name) for rule, part in rules for name in [*part[what], f"{rule}:"])
    table.add_column(what, min_width=min(longest, 24))
    for name in dict.fromkeys(name for _, part in rules for name in part[_OTHER[what]]):
        # Two lines take the width of the numbers below them.
        table.add_column(Text(name.replace(" ", "\n", name in TRUST)), justify="right")
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


def _measured(frame: pd.DataFrame) -> str:
    """What the numbers of a table are."""
    # Not every method can use a known domain, and older records lack some numbers.
    there = frame[~frame["domain"].isin(("known domain", *TRUST))]
    trials, draws = _counted(there["trials"], "trial"), _counted(frame["draws"], "draw")
    several = frame["trials"].max() > 1
    spread = f"± standard error over {trials}" if several else f"{trials}: no spread known"
    best = f", best of {draws}" if frame["draws"].max() > 1 else ""
    home = "; in-domain: on the sources' probe parts"
    if frame["method"].str.startswith(BOUND).any():
        home += f"; {BOUND}: trained on the target, read on its probe part"
    trust = ""
    if frame["domain"].isin(TRUST).any():
        trust = f", with {' (least is best) and '.join(TRUST)} coverage"
    return f"accuracy (%) on unseen domains, {spread}{best}{trust}{home}"


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
