"""One sentence on a benchmark: what does best on unseen domains, and whether that may be chance.

It uses the first rule that does not look at the target, if there is one.
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from afield.experiments.selection import RULES
from afield.reporting.comparison import REFERENCE, Comparison, compare
from afield.reporting.results import UPPER_BOUND, Results

__all__ = [
    "Headline",
    "bidi_isolate",
    "build_headline",
    "escape_invisible",
    "format_points",
    "leading_rule",
]

NO_BREAK_SPACE = "\N{NO-BREAK SPACE}"


@dataclass(frozen=True)
class Headline:
    """The sentence, remarks that qualify it, and the best method (empty if there is none)."""

    sentence: str
    remarks: Sequence[str] = ()
    best: str = ""


def build_headline(
    results: Results, frame: pd.DataFrame, comparisons: Sequence[Comparison]
) -> Headline:
    """Say in words what the table shows.

    Parameters
    ----------
    results
        The results of one dataset.
    frame
        Their table, from `tabulate`.
    comparisons
        The comparisons under the leading rule.
    """
    rule = leading_rule(frame)
    ranked = _ranked(frame, rule) if rule else []
    if frame.empty:
        return Headline(
            "No table: no selection rule has all the evaluations it needs in these records."
        )
    if not ranked:
        return Headline(f"No method has finished all its runs on {_name(results)} yet.")
    (best, accuracy), *others = ranked
    remarks = [_basis(frame, rule), *_clear_differences(comparisons), *_unranked(results, ranked)]
    if not others:
        sentence = f"{bidi_isolate(best)} reaches {_percent(accuracy)} on the unseen domains of"
        alone = "Only one method was run, so there is no comparison."
        return Headline(f"{sentence} {_name(results)}.", [alone, *remarks], best)
    lead = next((each for each in comparisons if each.method == best), None)
    if lead is not None:
        sentence = (
            f"{_leads(best, results)}: {_percent(accuracy)}, {_distance(lead)}. {_weigh(lead)}"
        )
        return Headline(sentence, remarks, best)
    picks = results.picks(rule)
    second, _ = others[0]
    rival = compare(picks[best], picks[second], best, second)
    gap = "" if rival is None else f", {_distance(rival)}. {_weigh(rival)}"
    if any(name == REFERENCE or name.startswith(f"{REFERENCE} ") for name, _ in ranked):
        sentence = f"No method beats {bidi_isolate(best)} on the unseen domains of {_name(results)}"
        return Headline(f"{sentence}: it reaches {_percent(accuracy)}{gap or '.'}", remarks, best)
    missing = f"{REFERENCE} was not run, so it is unknown whether this beats plain training."
    sentence = f"{_leads(best, results)}: {_percent(accuracy)}{gap or '.'}"
    return Headline(sentence, [missing, *remarks], best)


def leading_rule(frame: pd.DataFrame) -> str:
    """The first rule with a mean that is no oracle; otherwise the oracle, or empty."""
    means = frame[(frame["domain"] == "mean") & frame["accuracy"].notna()]
    rules = list(dict.fromkeys(means["rule"]))
    return min(rules, key=lambda rule: RULES[rule].is_oracle, default="")


def escape_invisible(name: str) -> str:
    r"""Write out the characters of a name that would act instead of being seen.

    These are control characters, line separators and marks of direction.

    >>> escape_invisible("photo\u202e")
    'photo\\u202e'
    """
    return "".join(
        f"\\u{ord(c):04x}" if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp", "Cs") else c
        for c in name
    )


def bidi_isolate(name: str) -> str:
    """A name for a sentence; right-to-left letters in it do not turn the rest of the sentence."""
    return f"\u2068{escape_invisible(name)}\u2069"


def format_points(share: float, *, sign: bool = True) -> str:
    """A difference of accuracies in percentage points.

    >>> format_points(-0.0123), format_points(0.0123), format_points(0.0)
    ('−1.2', '+1.2', '0.0')
    """
    text = f"{100 * share:+.1f}" if sign else f"{100 * abs(share):.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", "−")


def _ranked(frame: pd.DataFrame, rule: str) -> list[tuple[str, float]]:
    """Methods and their means, the best first, without the upper bound."""
    means = frame[(frame["rule"] == rule) & (frame["domain"] == "mean")].dropna(subset="accuracy")
    pairs = zip(means["method"], means["accuracy"], strict=True)
    fair = [(str(m), float(a)) for m, a in pairs if not str(m).startswith(UPPER_BOUND)]
    # Among equals the reference comes first: it is the simpler method.
    return sorted(fair, key=lambda pair: (-pair[1], pair[0] != REFERENCE, pair[0]))


def _leads(best: str, results: Results) -> str:
    return f"{bidi_isolate(best)} is best on the unseen domains of {_name(results)}"


def _name(results: Results) -> str:
    return bidi_isolate(results.name)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}{NO_BREAK_SPACE}%"


def _distance(comparison: Comparison) -> str:
    """How far a method is above or below the other, in words."""
    size = format_points(comparison.difference, sign=False)
    if size == "0.0":
        return f"level with {bidi_isolate(comparison.reference)}"
    direction = "above" if comparison.difference > 0 else "below"
    return f"{size} points {direction} {bidi_isolate(comparison.reference)}"


def _weigh(comparison: Comparison) -> str:
    """Whether the difference is larger than the variation over trials."""
    if comparison.verdict == "level":
        return "Both have the same accuracy in every trial and domain."
    if comparison.trials < 2:
        return "With only one trial, this may be chance."
    if comparison.verdict == "too few":
        return f"{comparison.pairs} pairs of trial and domain are too few to rule out chance."
    low, high = format_points(comparison.low), format_points(comparison.high)
    clear = comparison.verdict in ("better", "worse")
    verdict = "is larger than the variation over trials" if clear else "may be chance"
    return f"The difference {verdict} (95{NO_BREAK_SPACE}% interval {low} to {high})."


def _unranked(results: Results, ranked: Sequence[tuple[str, float]]) -> list[str]:
    """The methods without a mean."""
    names = {name for name, _ in ranked}
    missing = [m for m in results.methods if m not in names and not m.startswith(UPPER_BOUND)]
    if not missing:
        return []
    return [f"Not ranked because runs are missing: {', '.join(map(bidi_isolate, missing))}."]


def _basis(frame: pd.DataFrame, rule: str) -> str:
    """The rule, and the number of trials and draws."""
    means = frame[(frame["rule"] == rule) & (frame["domain"] == "mean")]
    oracle = ", which uses the target: an upper bound, not a result" * RULES[rule].is_oracle
    draws = means["draws"].max()
    best = f", best of {draws} hyperparameter samples" * bool(draws > 1)
    trials = int(means["trials"].max())
    selection = f"Selection rule: {rule}, {RULES[rule].description}{oracle}"
    text = f"{selection}; mean over unseen domains and {trials} trial"
    return f"{text}{'s' * (trials > 1)}{best}."


def _clear_differences(comparisons: Sequence[Comparison]) -> list[str]:
    """Which methods clearly differ from the reference, if several are compared."""
    judged = [each for each in comparisons if each.verdict != "too few"]
    if len(judged) < 2:
        return []
    clear = []
    for verdict in ("better", "worse"):
        names = [bidi_isolate(each.method) for each in judged if each.verdict == verdict]
        if names:
            clear.append(f"{verdict} than {REFERENCE}: {', '.join(names)}")
    if not clear:
        return [f"None of the {len(judged)} other methods differs clearly from {REFERENCE}."]
    rest = sum(each.verdict in ("unclear", "level") for each in judged)
    others = f"; no clear difference: {rest}" if rest else ""
    chance = f"By chance alone, one comparison in twenty would look clear; there are {len(judged)}."
    return [f"Clearly {'; clearly '.join(clear)}{others}. {chance}"]
