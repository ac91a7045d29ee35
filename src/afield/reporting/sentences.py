"""What a benchmark shows, in words: a headline, a verdict, three tiles and the next steps.

The headline uses the first rule that does not look at the target, if there is one.
"""

import math
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from afield.reporting.claims import (
    MAX_TRIALS,
    ONE_POINT,
    Claim,
    Power,
    TrialsRange,
    all_claims,
    leading_rule,
    ranked_means,
    typical_power,
)
from afield.reporting.comparison import MIN_STDERR, Comparison, Interval
from afield.reporting.results import Results
from afield.reporting.table import find_column, format_number
from afield.runs.record import Record
from afield.runs.row import REFERENCE
from afield.runs.selection import RULES
from afield.studies.commands import data_words, row_command, write_command
from afield.training.metrics import find_metric

NO_BREAK_SPACE = "\N{NO-BREAK SPACE}"


@dataclass(frozen=True)
class Headline:
    """The sentence, remarks that qualify it, and the best method (empty if there is none)."""

    sentence: str
    remarks: Sequence[str] = ()
    best: str = ""


def build_headline(results: Results, frame: pd.DataFrame, claim: Claim | None) -> Headline:
    """Say in words what the table of a dataset shows; `claim` is about the leading rule."""
    if frame.empty:
        return Headline(
            "No table: no selection rule has all the evaluations it needs in these records."
        )
    if claim is None:
        return Headline(f"No method has finished all its runs on {bidi_isolate(results.name)} yet.")
    rule = leading_rule(frame)
    ranked = ranked_means(frame, rule)
    where = f"on the unseen domains of {bidi_isolate(results.name)}"
    remarks = [_basis(frame, rule), *_limits(claim), *_unranked(results, list(ranked))]
    leader, reached = bidi_isolate(claim.leader), _format_mean(claim)
    if len(ranked) == 1:
        alone = "Only one method was run, so there is no comparison."
        return Headline(f"{leader} reaches {reached} {where}.", [alone, *remarks], claim.leader)
    gap = _gap(claim, bidi_isolate, alone=".")
    best_classical = next((name for name in ranked if name in claim.unbeaten), "")
    if best_classical and best_classical != claim.leader and claim.leader not in claim.unbeaten:
        return _unbeaten_headline(claim, best_classical, where, remarks, gap)
    has_reference = not claim.plain.isdisjoint(ranked)
    if has_reference and not claim.reference:
        sentence = f"No method beats {leader} {where}: it reaches {reached}{gap}"
        return Headline(sentence, remarks, claim.leader)
    sentence = f"{leader} leads {where}: {reached}{gap}"
    if not has_reference:
        missing = f"{REFERENCE} was not run, so it is unknown whether this beats plain training."
        remarks = [missing, *remarks]
    return Headline(sentence, remarks, claim.leader)


def _unbeaten_headline(
    claim: Claim, classical: str, where: str, remarks: Sequence[str], gap: str
) -> Headline:
    """That nothing clearly beats a classical method, although another method leads."""
    name, leader = bidi_isolate(classical), bidi_isolate(claim.leader)
    sentence = f"No method clearly beats {name} {where}: {leader} leads with {_format_mean(claim)}"
    duel = next(
        e for e in claim.with_classical if (e.method, e.reference) == (claim.leader, classical)
    )
    ends = f"95{NO_BREAK_SPACE}% interval {_format_interval(claim, duel.interval())}"
    sentence += (
        f", {_distance(claim, duel, bidi_isolate)} ({ends}{describe_correction(duel.rivals)})."
    )
    against = f"{leader} reaches {_format_mean(claim)}{gap}" if claim.comparison else ""
    return Headline(sentence, [*filter(None, [against]), *remarks], claim.leader)


def describe_classical(claim: Claim) -> str:
    """Whether a method is better than the classical ones, all of them; empty without any."""
    if not claim.with_classical:
        return ""
    names = ", ".join(map(bidi_isolate, claim.classical))
    if all(each.verdict == "too few" for each in claim.with_classical):
        lack = describe_lack(claim.with_classical[0])
        return f"Whether a method beats the classical ones ({names}) cannot be told: {lack}."
    corrected = describe_correction(claim.with_classical[0].rivals).removeprefix(", ")
    if above := claim.above_classical:
        better = ", ".join(map(bidi_isolate, above))
        verb = "are" if len(above) > 1 else "is"
        return f"Clearly better than all classical methods ({names}) {verb} {better}; {corrected}."
    unbeaten = ", ".join(map(bidi_isolate, claim.unbeaten)) or "all of them at once"
    return (
        f"No method is clearly better than all classical methods ({names}): none clearly beats "
        f"{unbeaten}; {corrected}."
    )


def describe_claim(claim: Claim, *, quote: Callable[[str], str] | None = None) -> str:
    """Say in one line who leads, by how much, and whether that is more than chance."""
    quote = escape_invisible if quote is None else quote
    gap = _gap(claim, quote, alone="; no comparison.")
    return f"{quote(claim.leader)} leads with {_format_mean(claim)}{gap}"


def _adaptation(claim: Claim, quote: Callable[[str], str]) -> str:
    """That the leader has seen unlabelled target samples, and who leads without them."""
    if claim.best_unadapted is None:
        return ""
    name, mean = claim.best_unadapted
    best = f"; without, {quote(name)} leads with {_format_mean(claim, mean)}" if name else ""
    return f" It has seen unlabelled target samples{best}."


def claim_lines(records: Iterable[Record], frame: pd.DataFrame) -> dict[tuple[str, str], str]:
    """The claim of each dataset and rule of a table about the best method, in one line each."""
    return {key: describe_claim(claim) for key, claim in all_claims(records, frame).items()}


def describe_power(power: Power, difference: float = ONE_POINT) -> str:
    """Say which difference a benchmark can detect, and how many trials a difference takes."""
    count = f"{power.trials} trials"
    # Small sizes have two decimals.
    detectable = power.detectable
    size = f"{100 * detectable:.{2 if detectable < ONE_POINT / 2 else 1}f}"
    now = f"With {count}, a true difference of {size} points is detected"
    points = f"{100 * difference:g} point" + "s" * (difference != ONE_POINT)
    needed = format_trials(power.trials_for(difference))
    return f"{now} with a probability of 80{NO_BREAK_SPACE}%; one of {points} takes {needed}."


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


def format_trials(count: int | None, noun: str = " trials") -> str:
    """A number of trials; None is more than the greatest number that is searched.

    >>> format_trials(12), format_trials(None)
    ('12 trials', 'more than 1000 trials')
    """
    return f"{f'more than {MAX_TRIALS}' if count is None else count}{noun}"


def format_trials_range(ends: TrialsRange | None) -> str:
    """How many trials a lead takes to settle.

    >>> format_trials_range(TrialsRange(6, 12)), format_trials_range(TrialsRange(6, None))
    ('6 to 12 trials', 'at least 6 trials')
    """
    low, high = ends or (None, None)
    if low is None or low == high:
        return format_trials(low)
    return f"at least {format_trials(low)}" if high is None else f"{low} to {format_trials(high)}"


def _format_mean(claim: Claim, mean: float | None = None) -> str:
    value = claim.accuracy if mean is None else mean
    if not find_metric(claim.metric).is_share:
        return f"{value:.3f}"
    return f"{100 * value:.1f}{NO_BREAK_SPACE}%"


def _gap(claim: Claim, quote: Callable[[str], str], *, alone: str) -> str:
    """How far the leader is from its rival, whether that may be chance, and what it has seen."""
    gap = alone
    if claim.comparison is not None:
        gap = f", {_distance(claim, claim.comparison, quote)}. {_weigh(claim, claim.comparison)}"
    return gap + _adaptation(claim, quote)


def _distance(claim: Claim, comparison: Comparison, quote: Callable[[str], str]) -> str:
    metric = find_metric(claim.metric)
    share, size = f"{100 * abs(comparison.difference):.1f}", f"{abs(comparison.difference):.3f}"
    rival = quote(comparison.reference)
    if float(share if metric.is_share else size) == 0:
        return f"level with {rival}"
    is_above = (comparison.difference > 0) is not metric.lower_is_better
    amount = f"{share} points" if metric.is_share else size
    return f"{amount} {'above' if is_above else 'below'} {rival}"


def _format_interval(claim: Claim, interval: Interval) -> str:
    """An interval of the metric itself; differences of comparisons speak for the method."""
    metric = find_metric(claim.metric)
    low, high = (-interval.high, -interval.low) if metric.lower_is_better else interval
    if metric.is_share:
        return f"{format_points(low)} to {format_points(high)}"
    return f"{low:+.3f} to {high:+.3f}".replace("-", "−")


def _weigh(claim: Claim, comparison: Comparison) -> str:
    """Whether the difference is larger than the variation over trials."""
    if claim.verdict == "level":
        return f"Both have the same {find_metric(claim.metric).title} in every trial and domain."
    if claim.verdict == "too few":
        return f"Cannot tell whether this is chance: {describe_lack(comparison)}."
    ends = _format_interval(claim, comparison.interval())
    interval = f"(95{NO_BREAK_SPACE}% interval {ends}{describe_correction(comparison.rivals)})"
    if claim.is_more_than_chance:
        return f"That is more than chance {interval}."
    needed = format_trials_range(claim.trials_range)
    return f"That may be chance {interval}; it takes {needed} to settle."


def describe_correction(rivals: int) -> str:
    """That intervals are corrected for the number of comparisons; empty for a single one."""
    return f", corrected for {rivals} comparisons" if rivals > 1 else ""


def describe_lack(comparison: Comparison) -> str:
    """Why nothing can be said about chance."""
    if comparison.trials < 2:
        return "there is only one trial"
    if not comparison.stderr > MIN_STDERR:
        return "all trials gave the same difference"
    differ = comparison.pairs - comparison.ties
    return f"{differ} pairs of trial and domain that differ are too few"


def _unranked(results: Results, ranked: Sequence[str]) -> list[str]:
    """The methods without a mean."""
    missing = [m for m, row in results.rows.items() if m not in ranked and not row.is_bound]
    if not missing:
        return []
    return [f"Not ranked because runs are missing: {', '.join(map(bidi_isolate, missing))}."]


def _basis(frame: pd.DataFrame, rule: str) -> str:
    """The rule, and the number of trials and draws."""
    means = frame[(frame["rule"] == rule) & (frame["domain"] == "mean")]
    is_oracle = RULES[rule].is_oracle
    oracle = ", which uses the target: an upper bound, not a result" if is_oracle else ""
    draws = means["draws"].max()
    best = f", best of {draws} hyperparameter samples" if draws > 1 else ""
    trials = int(means["trials"].max())
    selection = f"Selection rule: {rule}, {RULES[rule].description}{oracle}"
    text = f"{selection}; mean over unseen domains and {trials} trial"
    return f"{text}{'s' * (trials > 1)}{best}."


def _limits(claim: Claim) -> list[str]:
    """Remarks on the scope of the claim, and on open questions."""
    remarks = [*filter(None, [describe_classical(claim)])]
    remarks += _new_domains(claim) + _possible_best(claim)
    remarks += _clear_differences(
        [each for each in claim.comparisons if each.reference in claim.plain]
    )
    power = typical_power(claim.comparisons)
    if power is None or not find_metric(claim.metric).is_share:
        return remarks
    return [*remarks, describe_power(power)]


def _new_domains(claim: Claim) -> list[str]:
    """The interval for new domains."""
    if claim.comparison is None or claim.verdict in ("level", "too few"):
        return []
    ends = claim.comparison.interval(new_domain=True)
    about = "The interval speaks about these domains."
    if math.isnan(ends.low):
        return [f"{about} One domain does not show how the difference varies over domains."]
    expected = _format_interval(claim, ends)
    return [f"{about} For a new domain like these, expect a mean difference of {expected}."]


def _possible_best(claim: Claim) -> list[str]:
    """Which methods may be the best one."""
    if claim.verdict in ("alone", "too few"):
        return []
    if len(claim.possible_best) == 1:
        return [f"{bidi_isolate(claim.leader)} is clearly better than every other method."]
    names = ", ".join(map(bidi_isolate, claim.possible_best))
    return [f"With 95{NO_BREAK_SPACE}% confidence, the best method is one of {names}."]


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
    corrected = f"corrected for {judged[0].rivals} comparisons"
    return [f"Clearly {'; clearly '.join(clear)}{others} ({corrected})."]


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
    """Sum up the table of one dataset; `claim` is about `rule`, and None without any mean."""
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
    if claim.unbeaten and claim.leader not in claim.unbeaten:
        return f"No method clearly beats {bidi_isolate(claim.unbeaten[0])}."
    if claim.verdict == "unclear" and claim.reference:
        return f"No method clearly beats {rival}."
    if claim.verdict != "too few" and claim.leader in claim.plain:
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
    ends = f"{format_points(low)} to {format_points(high)}"
    return f"95{NO_BREAK_SPACE}% interval {ends}{describe_correction(comparison.rivals)}"


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
    dataset, columns = data_words(results.methods[claim.leader][0].run)
    options = [*columns, ("store", store), ("out", "model")]
    fit = write_command("fit", dataset, "best", options=options)
    return [
        *_trials_step(results, claim, store),
        Step("Train the best method on all domains, for use:", fit),
        Step("Apply it to new files:", "afield predict model path/to/files --out answers.csv"),
    ]


def _trials_step(results: Results, claim: Claim, store: str) -> list[Step]:
    """The trials that would settle an open question."""
    comparison = claim.comparison
    if comparison is None:
        text = f"Compare with plain training ({REFERENCE}):"
        return [] if claim.leader in claim.plain else [_bench_step(results, claim, store, text, 3)]
    if claim.verdict == "too few" and comparison.trials < 3:
        text = "Run three trials, which show how much results vary:"
        return [_bench_step(results, claim, store, text, 3)]
    if claim.verdict != "unclear":
        return []
    low, high = claim.trials_range or (None, None)
    takes = f"it takes {format_trials_range(claim.trials_range)}"
    if low is None or low > MAX_SUGGESTED_TRIALS:
        return [Step(f"Treat the two as equal: {takes} to settle which is better.")]
    if high is None or high > MAX_SUGGESTED_TRIALS:
        text = f"Treat the two as equal, or begin with {low} trials ({takes} to settle):"
        return [_bench_step(results, claim, store, text, low)]
    text = f"Settle whether the difference is real with {high} trials ({takes}):"
    return [_bench_step(results, claim, store, text, high)]


def _bench_step(results: Results, claim: Claim, store: str, text: str, trials: int) -> Step:
    rival = claim.comparison.reference if claim.comparison else REFERENCE
    other = results.rows.get(rival)
    beside = [REFERENCE] if other is None else [] if other.is_merged else [other.method]
    start = other.start if other and results.rows[claim.leader].is_merged else ""
    command = row_command(
        results.methods[claim.leader], store=store, trials=trials, beside=beside, start=start
    )
    return Step(text, command)
