"""Who leads a benchmark, by how much, and whether that is more than chance.

The leader is compared with its reference, erm. If erm leads or was not run, the leader is compared
with the second best method. The leader was picked for its mean, so the interval is corrected for
the number of comparisons that it was picked from.

Power: which differences a benchmark can detect, from the spread of its trials.
A difference is detected if its corrected interval excludes 0. With more trials, the standard error
falls with their square root, and the degrees of freedom grow in proportion.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd

from afield.reporting.comparison import (
    MIN_STDERR,
    Accuracies,
    Comparison,
    Noise,
    accuracies,
    benchmark_noise,
    compare,
    compare_all,
    critical_value,
    references,
)
from afield.reporting.results import Results, group_records
from afield.reporting.table import shown_metric
from afield.runs.record import Record
from afield.runs.row import REFERENCE, Row
from afield.runs.selection import RULES
from afield.training.metrics import DEFAULT_METRIC, find_metric

PROBABILITY = 0.8
MAX_TRIALS = 1000
ONE_POINT = 0.01
QUANTILES = (np.arange(1000) + 0.5) / 1000
# How often an end of a range of trials may be wrong.
RANGE_ERROR = 0.2
# With a true lead that is left unsettled less often than this, it is settled in the next trials.
MIN_UNSETTLED = 1e-9


class TrialsRange(NamedTuple):
    """From how many trials to how many a lead takes to settle; None is more than MAX_TRIALS."""

    low: int | None
    high: int | None


@dataclass(frozen=True)
class Power:
    """What a benchmark can detect, from the spread of its trials; differences are shares.

    Attributes
    ----------
    trials
        The number of trials so far.
    stderr, freedom
        The standard error of a difference with this number of trials, and its degrees of freedom.
    rivals
        The number of comparisons for which intervals are corrected.
    """

    trials: int
    stderr: float
    freedom: float
    rivals: int = 1

    @property
    def known(self) -> bool:
        """Whether the trials show any spread: there are two or more, and they differ."""
        return self.trials > 1 and self.stderr > MIN_STDERR

    def probability(self, difference: float, trials: int | None = None) -> float:
        """The probability to detect a true difference with this number of trials; NaN if unknown.

        It is the mean over standard errors that the trials could have given; unlike the functions
        for the noncentral t distribution, it is finite for all degrees of freedom.
        """
        from scipy import special

        if not self.known:
            return math.nan
        trials = self.trials if trials is None else trials
        freedom = self.freedom * (trials - 1) / (self.trials - 1)
        shift = abs(difference) / self.stderr * math.sqrt(trials / self.trials)
        reach = critical_value(freedom, self.rivals)
        ratios = np.sqrt(special.gammaincinv(freedom / 2, QUANTILES) * 2 / freedom)
        detected = special.ndtr(shift - reach * ratios) + special.ndtr(-shift - reach * ratios)
        return float(detected.mean())

    @property
    def detectable(self) -> float:
        """The difference that is detected with a probability of 80 %; NaN if unknown."""
        from scipy import optimize

        if not self.known:
            return math.nan
        high = self.stderr
        while self.probability(high) < PROBABILITY:
            high *= 2
        return float(optimize.brentq(lambda each: self.probability(each) - PROBABILITY, 0.0, high))

    def trials_for(self, difference: float = ONE_POINT) -> int | None:
        """The fewest trials that detect a difference with 80 %; None if more than MAX_TRIALS."""
        if not self.known or self.probability(difference, MAX_TRIALS) < PROBABILITY:
            return None
        counts = range(2, MAX_TRIALS + 1)
        chances = partial(self.probability, difference)
        return counts[bisect_left(counts, PROBABILITY, key=chances)]

    def trials_range(self, lead: float) -> TrialsRange | None:
        """How many trials it takes to settle a lead that may be chance; None if it is settled.

        The true lead is not the observed one, which is that of a leader and therefore too high on
        average. The ends belong to the greatest and to the smallest true lead that the observed one
        allows, given that there is a lead and that it may be chance; each is wrong in 20 % of
        cases. The smallest lead is corrected for the number of comparisons from which the leader
        was picked. So the number of trials at the upper end detects the true lead with a
        probability of 80 % in at least 80 % of cases.
        """
        if not self.known or lead >= self.stderr * critical_value(self.freedom, self.rivals):
            return None
        ends = (1 - RANGE_ERROR, RANGE_ERROR / self.rivals)
        low, high = (self._further_trials(self._true_lead(lead, share)) for share in ends)
        return TrialsRange(low, high)

    def _further_trials(self, difference: float) -> int | None:
        """The trials for a difference; more than there are, since these did not settle it."""
        needed = self.trials_for(difference)
        return needed and max(needed, self.trials + 1)

    def _true_lead(self, lead: float, share: float) -> float:
        """The true lead with which this share of unsettled leads is larger; 0 if there is none."""
        from scipy import optimize, special

        ratios = np.sqrt(special.gammaincinv(self.freedom / 2, QUANTILES) * 2 / self.freedom)
        reach = critical_value(self.freedom, self.rivals)

        def excess(shift: float) -> float:
            """How much larger than `share` the share of larger leads is, in standard errors."""
            settled = special.ndtr(shift - reach * ratios).mean()
            larger = special.ndtr(shift - lead / self.stderr * ratios).mean() - settled
            unsettled = special.ndtr(shift) - settled
            return float(larger / unsettled) - share if unsettled > MIN_UNSETTLED else 1 - share

        if lead <= 0 or excess(0.0) >= 0:
            return 0.0
        high = 1.0
        while excess(high) < 0:
            high *= 2
        return float(optimize.brentq(excess, 0.0, high)) * self.stderr


def estimate_power(comparison: Comparison) -> Power:
    """The power of one comparison."""
    return Power(comparison.trials, comparison.stderr, comparison.freedom, rivals=comparison.rivals)


def typical_power(comparisons: Sequence[Comparison]) -> Power | None:
    """The power of a benchmark's typical comparison; None if no spread is known.

    The typical standard error is the root of the mean square over comparisons.
    """
    known = [each for each in map(estimate_power, comparisons) if each.known]
    if not known:
        return None
    return Power(
        trials=min(each.trials for each in known),
        stderr=math.sqrt(np.mean([each.stderr**2 for each in known])),
        freedom=float(np.mean([each.freedom for each in known])),
        rivals=known[0].rivals,
    )


@dataclass(frozen=True)
class Claim:
    """What a benchmark says about its best method; accuracies are shares.

    Attributes
    ----------
    leader, accuracy
        The method with the best mean, and that mean.
    comparison
        The leader against its rival; None if there is no rival with the same trials and domains.
    comparisons
        All comparisons from which the leader was picked, the greatest difference first: of every
        method with its reference, or of the leader with every other method if erm was not run.
    reference
        The erm that the leader is compared with; empty if it is that erm, or if erm was not run.
    possible_best
        The methods that the leader does not clearly beat, and the leader itself. The truly best
        method is among them with a confidence of 95 %.
    best_unadapted
        If the leader predicts with the help of unlabelled target samples: the best method that does
        not, with its mean. Both are empty and NaN if there is none.
    plain
        The methods that are plain training (erm), with any settings.
    metric
        What takes the place of the accuracy. If lower is better, differences have the other sign:
        positive ones always speak for the leader.
    with_classical
        The comparisons of every other method with every classical one, simultaneously: intervals
        are corrected for the number of all of them.
    """

    leader: str
    accuracy: float
    comparison: Comparison | None = None
    comparisons: Sequence[Comparison] = ()
    reference: str = ""
    possible_best: Sequence[str] = ()
    best_unadapted: tuple[str, float] | None = None
    plain: frozenset[str] = frozenset()
    metric: str = DEFAULT_METRIC
    with_classical: Sequence[Comparison] = ()

    @property
    def verdict(self) -> str:
        """Of the comparison: "better", "unclear", "level" or "too few"; "alone" without one."""
        if self.comparison is None:
            return "alone"
        # The leader is not picked by its mean over the pairs, in which it may even be worse.
        return "unclear" if self.comparison.verdict == "worse" else self.comparison.verdict

    @property
    def is_more_than_chance(self) -> bool:
        """Whether the leader is clearly better than its rival."""
        return self.verdict == "better"

    @property
    def classical(self) -> list[str]:
        """The classical methods that others are compared with."""
        return list(dict.fromkeys(each.reference for each in self.with_classical))

    @property
    def unbeaten(self) -> list[str]:
        """The classical methods that no other method clearly beats, although that could be told."""
        judged = {e.reference for e in self.with_classical if e.verdict != "too few"}
        beaten = {e.reference for e in self.with_classical if e.verdict == "better"}
        return [name for name in self.classical if name in judged - beaten]

    @property
    def above_classical(self) -> list[str]:
        """The methods that are clearly better than every classical one."""
        beaten: dict[str, int] = {}
        for each in self.with_classical:
            beaten[each.method] = beaten.get(each.method, 0) + (each.verdict == "better")
        return [name for name, count in beaten.items() if count == len(self.classical)]

    @property
    def trials_range(self) -> TrialsRange | None:
        """From how many trials to how many a lead takes that may be chance; None if unknown."""
        if self.comparison is None:
            return None
        return estimate_power(self.comparison).trials_range(self.comparison.difference)


def build_claims(results: Results, frame: pd.DataFrame) -> dict[str, Claim]:
    """The claim of every rule of a dataset for which some method in its table has a mean."""
    claims = {}
    for rule in dict.fromkeys(frame["rule"]):
        means = ranked_means(frame, rule)
        if means:
            measured = accuracies(results, rule)
            metric = results.metric or DEFAULT_METRIC
            claims[rule] = make_claim(
                means, measured, references(results), rows=results.rows, metric=metric
            )
    return claims


def all_claims(records: Iterable[Record], frame: pd.DataFrame) -> dict[tuple[str, str], Claim]:
    """The claims of all datasets in a table, by the title of the dataset and the rule."""
    return {
        (results.title, rule): claim
        for results in group_records(records, shown_metric(frame))
        for rule, claim in build_claims(results, frame[frame["dataset"] == results.title]).items()
    }


def make_claim(
    means: Mapping[str, float],
    measured: Mapping[str, Accuracies],
    against: Mapping[str, str],
    *,
    rows: Mapping[str, Row],
    metric: str = DEFAULT_METRIC,
) -> Claim:
    """The claim about the best of some methods.

    `means` has the best first; `against` is empty if erm was not run.
    """
    leader, *others = means
    noise = benchmark_noise(measured)
    duels = _duels(leader, others, measured, noise)
    family = compare_all(measured, against, noise) if against else list(duels.values())
    comparison = next((each for each in family if each.method == leader), None)
    if leader not in against and others:
        comparison = duels.get(others[0])
    beaten = {name for name, duel in duels.items() if duel.verdict == "better"}
    unadapted = ((name, mean) for name, mean in means.items() if not rows[name].sees_samples)
    return Claim(
        leader=leader,
        accuracy=means[leader],
        comparison=comparison,
        comparisons=family,
        reference=against.get(leader, ""),
        possible_best=[name for name in means if name not in beaten],
        best_unadapted=next(unadapted, ("", math.nan)) if rows[leader].sees_samples else None,
        plain=frozenset(name for name, row in rows.items() if row.is_reference),
        metric=metric,
        with_classical=_with_classical(means, measured, rows, noise),
    )


def _with_classical(
    means: Mapping[str, float],
    measured: Mapping[str, Accuracies],
    rows: Mapping[str, Row],
    noise: Noise | None,
) -> list[Comparison]:
    """Every method against every classical one, the best first."""
    classical = [name for name in means if rows[name].is_classical]
    others = [name for name in means if not rows[name].is_classical]
    pairs = [(name, known) for name in others for known in classical]
    rivals = max(1, len(pairs))
    compared = (
        compare(measured[a], measured[b], a, b, noise=noise, rivals=rivals) for a, b in pairs
    )
    return [each for each in compared if each is not None]


def _duels(
    leader: str, others: Sequence[str], measured: Mapping[str, Accuracies], noise: Noise | None
) -> dict[str, Comparison]:
    """The leader against every other method."""
    rivals = max(1, len(others))
    duels = {}
    for name in others:
        one, other = measured[leader], measured[name]
        if duel := compare(one, other, leader, name, noise=noise, rivals=rivals):
            duels[name] = duel
    return duels


def leading_rule(frame: pd.DataFrame) -> str:
    """The first rule with a mean that is not an oracle; otherwise the oracle, or empty."""
    means = frame[(frame["domain"] == "mean") & frame["accuracy"].notna()]
    rules = list(dict.fromkeys(means["rule"]))
    return min(rules, key=lambda rule: RULES[rule].is_oracle, default="")


def ranked_means(frame: pd.DataFrame, rule: str) -> dict[str, float]:
    """The means of the methods under a rule, the best first, without the upper bound."""
    means = frame[(frame["rule"] == rule) & (frame["domain"] == "mean")].dropna(subset="accuracy")
    fair = means[means["sees"] != "labels"]
    pairs = [(str(m), float(a)) for m, a in zip(fair["method"], fair["accuracy"], strict=True)]
    sign = 1 if find_metric(shown_metric(frame)).lower_is_better else -1
    # Among equals the reference comes first: it is the simpler method.
    return dict(sorted(pairs, key=lambda pair: (sign * pair[1], pair[0] != REFERENCE, pair[0])))
