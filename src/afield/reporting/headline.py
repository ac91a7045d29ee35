"""One sentence on a benchmark: what does best on unseen domains, and whether that is chance.

It is read off the first rule that knows nothing of the tested domains, if there is one.
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from afield.reporting.comparison import REFERENCE, Comparison, compare, comparisons
from afield.reporting.results import UPPER_BOUND, Results

__all__ = [
    "Headline",
    "bidi_isolate",
    "build_headline",
    "escape_invisible",
    "format_points",
    "leading_rule",
]

ORACLE = "target"
# A blank at which no line ends.
NO_BREAK_SPACE = "\N{NO-BREAK SPACE}"


@dataclass(frozen=True)
class Headline:
    """The sentence, what qualifies it, and the best method (empty where there is none)."""

    told: str
    remarks: Sequence[str] = ()
    best: str = ""


def build_headline(results: Results, frame: pd.DataFrame) -> Headline:
    """What the table of a benchmark says, in words; `frame` is what `tabulate` made of it."""
    rule = leading_rule(frame)
    ranked = _ranked(frame, rule) if rule else []
    if frame.empty:
        return Headline("No table can be made of these records: no rule has all that it reads.")
    if not ranked:
        return Headline(f"No method has all its runs on {_of(results)} yet: no mean is known.")
    (best, accuracy), *others = ranked
    known = comparisons(results, rule)
    remarks = [_basis(frame, rule), *_sorted_out(known), *_unranked(results, ranked)]
    if not others:
        told = f"{bidi_isolate(best)} has {_percent(accuracy)} on the unseen domains of"
        alone = "One method was run: there is nothing to compare it with."
        return Headline(f"{told} {_of(results)}.", [alone, *remarks], best)
    own = next((each for each in known if each.method == best), None)
    if own is not None:
        told = f"{_leads(best, results)}: {_percent(accuracy)}, {_over(own)}. {_weighed(own)}"
        return Headline(told, remarks, best)
    picks = results.picks(rule)
    second, _ = others[0]
    rival = compare(picks[best], picks[second], best, second)
    gap = "" if rival is None else f", {_over(rival)}. {_weighed(rival)}"
    if any(name == REFERENCE or name.startswith(f"{REFERENCE} ") for name, _ in ranked):
        told = f"No method beats {bidi_isolate(best)} on the unseen domains of {_of(results)}: "
        return Headline(f"{told}it has {_percent(accuracy)}{gap or '.'}", remarks, best)
    missing = f"{REFERENCE} was not run: nothing says whether this is better than plain training."
    told = f"{_leads(best, results)}: {_percent(accuracy)}{gap or '.'}"
    return Headline(told, [missing, *remarks], best)


def leading_rule(frame: pd.DataFrame) -> str:
    """The first rule with a mean that does not look at the target; the oracle if it must be."""
    known = frame[(frame["domain"] == "mean") & frame["accuracy"].notna()]
    rules = list(dict.fromkeys(known["rule"]))
    return min(rules, key=lambda rule: rule == ORACLE, default="")


def escape_invisible(name: str) -> str:
    r"""A name with nothing in it that acts instead of being seen: line ends, marks of direction.

    >>> escape_invisible("photo\u202e")
    'photo\\u202e'
    """
    return "".join(
        f"\\u{ord(c):04x}" if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp", "Cs") else c
        for c in name
    )


def bidi_isolate(name: str) -> str:
    """A name to stand in a sentence: letters from right to left turn nothing but themselves."""
    return f"\u2068{escape_invisible(name)}\u2069"


def format_points(share: float, *, sign: bool = True) -> str:
    """A difference of accuracies in percentage points.

    >>> format_points(-0.0123), format_points(0.0123), format_points(0.0)
    ('−1.2', '+1.2', '0.0')
    """
    text = f"{100 * share:+.1f}" if sign else f"{100 * abs(share):.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", "−")


def _ranked(frame: pd.DataFrame, rule: str) -> list[tuple[str, float]]:
    """Methods and their means, the best first; without what has seen the target."""
    own = frame[(frame["rule"] == rule) & (frame["domain"] == "mean")].dropna(subset="accuracy")
    pairs = zip(own["method"], own["accuracy"], strict=True)
    fair = [(str(m), float(a)) for m, a in pairs if not str(m).startswith(UPPER_BOUND)]
    # Of equals the reference stands first: it is the simpler one.
    return sorted(fair, key=lambda pair: (-pair[1], pair[0] != REFERENCE, pair[0]))


def _leads(best: str, benchmark: Results) -> str:
    return f"{bidi_isolate(best)} does best on the unseen domains of {_of(benchmark)}"


def _of(benchmark: Results) -> str:
    return bidi_isolate(benchmark.name)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}{NO_BREAK_SPACE}%"


def _over(own: Comparison) -> str:
    """How far above or below the other, in words."""
    size = format_points(own.difference, sign=False)
    if size == "0.0":
        return f"level with {bidi_isolate(own.reference)}"
    where = "above" if own.difference > 0 else "below"
    return f"{size} points {where} {bidi_isolate(own.reference)}"


def _weighed(own: Comparison) -> str:
    """Whether the difference is more than the spread over trials."""
    if own.verdict == "level":
        return "Both do the same on every trial and domain."
    if own.trials < 2:
        return "With one trial no spread is known: this may be chance."
    over = f"95{NO_BREAK_SPACE}% interval {format_points(own.low)} to {format_points(own.high)}"
    if own.verdict == "too few":
        return f"{own.pairs} pairs of trial and domain are too few to tell that from chance."
    clear = own.verdict in ("better", "worse")
    word = "That is more" if clear else "That is not more"
    return f"{word} than the spread over trials ({over})."


def _unranked(benchmark: Results, ranked: Sequence[tuple[str, float]]) -> list[str]:
    """What has no mean yet, and so no place."""
    known = {name for name, _ in ranked}
    missing = [m for m in benchmark.methods if m not in known and not m.startswith(UPPER_BOUND)]
    if not missing:
        return []
    return [f"Not ranked, because runs are missing: {', '.join(map(bidi_isolate, missing))}."]


def _basis(frame: pd.DataFrame, rule: str) -> str:
    own = frame[(frame["rule"] == rule) & (frame["domain"] == "mean")]
    oracle = ", which looks at the target: an upper bound, not a result" * (rule == ORACLE)
    draws = f", best of {own['draws'].max()} draws" * bool(own["draws"].max() > 1)
    trials = int(own["trials"].max())
    told = f"Picked by the rule {rule}{oracle}; mean over unseen domains and {trials} trial"
    return f"{told}{'s' * (trials > 1)}{draws}."


def _sorted_out(known: Sequence[Comparison]) -> list[str]:
    """Which methods can be told from the reference, where there are several."""
    judged = [each for each in known if each.verdict in ("better", "worse", "unclear", "level")]
    if len(judged) < 2:
        return []
    told = []
    for verdict in ("better", "worse"):
        names = [bidi_isolate(each.method) for each in judged if each.verdict == verdict]
        if names:
            told.append(f"{verdict} than {REFERENCE}: {', '.join(names)}")
    if not told:
        return [f"None of the {len(judged)} other methods can be told from {REFERENCE}."]
    rest = sum(each.verdict in ("unclear", "level") for each in judged)
    others = f"; {rest} cannot be told from it" if rest else ""
    chance = f"By chance alone one comparison in twenty looks like that; these are {len(judged)}."
    return [f"Clearly {'; clearly '.join(told)}{others}. {chance}"]
