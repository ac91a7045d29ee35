"""The top of a report: a verdict of at most ten words, three tiles, and what to do next."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from afield.reporting.headline import NO_BREAK_SPACE, bidi_isolate, format_points, format_trials
from afield.reporting.reproduce import row_command, shell_quote
from afield.reporting.results import Results
from afield.reporting.statistics.claim import Claim
from afield.reporting.statistics.comparison import REFERENCE, Comparison
from afield.reporting.table import find_column, format_number
from afield.training.metrics import find_metric

__all__ = ["Step", "Summary", "Tile", "build_summary"]

# More trials than this are not suggested.
MAX_SUGGESTED_TRIALS = 30


@dataclass(frozen=True)
class Tile:
    """A number with its label and a line of details."""

    label: str
    value: str
    detail: str


@dataclass(frozen=True)
class Step:
    """Something to do next, with the command for it (empty if there is none)."""

    text: str
    command: str = ""


@dataclass(frozen=True)
class Summary:
    """What the page begins with."""

    verdict: str
    tiles: Sequence[Tile] = ()
    steps: Sequence[Step] = ()


def build_summary(
    results: Results, frame: pd.DataFrame, rule: str, claim: Claim | None, store: str
) -> Summary:
    """Sum up the results of one dataset.

    Parameters
    ----------
    results
        The results of one dataset.
    frame
        Their table, from `tabulate`.
    rule
        The rule that the claim is about.
    claim
        What the results say about the best method, from `build_claims`; None without any mean.
    store
        The store of the records, for commands.
    """
    if claim is None:
        return Summary("No method has finished all its runs yet.")
    if not find_metric(claim.metric).is_share:
        return Summary(_verdict(claim))
    tiles = _tiles(results, frame, rule, claim)
    return Summary(_verdict(claim), tiles, _steps(results, claim, store))


def _verdict(claim: Claim) -> str:
    leader, comparison = bidi_isolate(claim.leader), claim.comparison
    if comparison is None:
        return f"{leader} was run; there is nothing to compare."
    rival = bidi_isolate(comparison.reference)
    texts = {
        "better": f"{leader} is better than {rival}.",
        "level": f"{leader} and {rival} are equal.",
        "too few": "Too few results to tell methods apart.",
        "unclear": f"{leader} leads, but that may be chance.",
    }
    if claim.verdict == "unclear" and claim.reference:
        return f"No method clearly beats {rival}."
    if claim.verdict != "too few" and _is_reference(claim.leader):
        return f"No method beats {leader}."
    return texts[claim.verdict]


def _tiles(results: Results, frame: pd.DataFrame, rule: str, claim: Claim) -> list[Tile]:
    rows = frame[(frame["rule"] == rule) & (frame["method"] == claim.leader)]
    by_name = {
        str(name): (float(value), float(error))
        for name, value, error in zip(rows["domain"], rows["accuracy"], rows["stderr"], strict=True)
    }
    trials = int(rows["trials"].max())
    over = f"mean over {len(results.domains)} unseen domains, {trials} trial{'s' * (trials > 1)}"
    best = Tile(f"Best: {bidi_isolate(claim.leader)}", _percent(*by_name["mean"]), over)
    return [best, *_gain_tile(claim), *_worst_tile(by_name, claim.leader)]


def _gain_tile(claim: Claim) -> list[Tile]:
    comparison = claim.comparison
    if comparison is None:
        return []
    value = f"{format_points(comparison.difference)} points"
    label = f"Gain over {bidi_isolate(comparison.reference)}"
    return [Tile(label, value, _describe_interval(comparison))]


def _describe_interval(comparison: Comparison) -> str:
    low, high = comparison.interval()
    if math.isnan(low):
        return "no interval: too few results"
    corrected = f", corrected for {comparison.rivals} comparisons" * (comparison.rivals > 1)
    return f"95{NO_BREAK_SPACE}% interval {format_points(low)} to {format_points(high)}{corrected}"


def _worst_tile(by_name: Mapping[str, tuple[float, float]], leader: str) -> list[Tile]:
    domains = {name: each for name, each in by_name.items() if find_column(name) is None}
    known = {name: each for name, each in domains.items() if not math.isnan(each[0])}
    if known:
        name = min(known, key=lambda each: known[each][0])
        label, detail = f"Worst domain: {bidi_isolate(name)}", f"with {bidi_isolate(leader)}"
        return [Tile(label, _percent(*known[name]), detail)]
    if "worst 10 %" not in by_name:
        return []
    detail = "mean over the worst tenth of the domains"
    return [Tile("Worst domains", _percent(*by_name["worst 10 %"]), detail)]


def _percent(share: float, error: float) -> str:
    spread = "" if math.isnan(error) else f" ±{NO_BREAK_SPACE}{format_number(error)}"
    return f"{format_number(share)}{spread}{NO_BREAK_SPACE}%"


def _steps(results: Results, claim: Claim, store: str) -> list[Step]:
    dataset = shell_quote(Path(results.methods[claim.leader][0].run.dataset).name)
    fit = f"afield fit {dataset} best --store {shell_quote(store)} --out model"
    return [
        *_trials_step(results, claim, store),
        Step("Train the best method on all domains, for use:", fit),
        Step("Apply it to new files:", "afield predict model path/to/files --out answers.csv"),
    ]


def _trials_step(results: Results, claim: Claim, store: str) -> list[Step]:
    """How to settle what is open."""
    comparison = claim.comparison
    if comparison is None:
        text = f"Compare with plain training ({REFERENCE}):"
        return [] if _is_reference(claim.leader) else [_bench_step(results, claim, store, text, 3)]
    if claim.verdict == "too few" and comparison.trials < 3:
        text = "Run three trials, which show how much results vary:"
        return [_bench_step(results, claim, store, text, 3)]
    needed = claim.trials_needed
    if claim.verdict != "unclear":
        return []
    if needed is None or needed > MAX_SUGGESTED_TRIALS:
        count = format_trials(needed)
        return [Step(f"Treat the two as equal: a difference of this size takes {count} to settle.")]
    text = f"Settle whether the difference is real with {needed} trials:"
    return [_bench_step(results, claim, store, text, needed)]


def _bench_step(results: Results, claim: Claim, store: str, text: str, trials: int) -> Step:
    rival = claim.comparison.reference if claim.comparison else REFERENCE
    records = results.methods.get(rival)
    other = records[0].run if records else None
    beside = [REFERENCE] if other is None else [] if other.experts else [other.method]
    leader = results.methods[claim.leader]
    start = str(other.given.get("start", "")) if other and leader[0].run.experts else ""
    command = row_command(leader, store=store, trials=trials, beside=beside, start=start)
    return Step(text, command)


def _is_reference(name: str) -> bool:
    return name == REFERENCE or name.startswith(f"{REFERENCE} ")
