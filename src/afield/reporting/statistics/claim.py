"""Who leads a benchmark, by how much, and whether that is more than chance.

The leader is compared with its reference, erm. If erm leads or was not run, the leader is compared
with the second best method. The leader was picked for its mean, so the interval is corrected for
the number of comparisons that it was picked from.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from afield.experiments.record import Record
from afield.experiments.selection import RULES
from afield.reporting.results import UPPER_BOUND, Results, group_records, sees_target_samples
from afield.reporting.statistics.comparison import (
    REFERENCE,
    Comparison,
    accuracies,
    compare,
    compare_all,
    references,
)
from afield.reporting.statistics.noise import Accuracies, Noise, benchmark_noise
from afield.reporting.statistics.power import estimate_power
from afield.reporting.table import shown_metric
from afield.training.metrics import DEFAULT_METRIC, find_metric

__all__ = ["Claim", "all_claims", "build_claims", "leading_rule", "make_claim", "ranked_means"]


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
    metric
        What takes the place of the accuracy. If lower is better, differences have the other sign:
        positive ones always speak for the leader.
    """

    leader: str
    accuracy: float
    comparison: Comparison | None = None
    comparisons: Sequence[Comparison] = ()
    reference: str = ""
    possible_best: Sequence[str] = ()
    best_unadapted: tuple[str, float] | None = None
    metric: str = DEFAULT_METRIC

    @property
    def verdict(self) -> str:
        """Of the comparison: "better", "unclear", "level" or "too few"; "alone" without one."""
        if self.comparison is None:
            return "alone"
        # Another mean than that of the pairs may decide who leads, so it may even be worse.
        return "unclear" if self.comparison.verdict == "worse" else self.comparison.verdict

    @property
    def is_more_than_chance(self) -> bool:
        """Whether the leader is clearly better than its rival."""
        return self.verdict == "better"

    @property
    def trials_needed(self) -> int | None:
        """The trials that would settle a difference of this size; None if unknown or too many."""
        if self.comparison is None:
            return None
        return estimate_power(self.comparison).trials_for(self.comparison.difference)


def build_claims(results: Results, frame: pd.DataFrame) -> dict[str, Claim]:
    """The claim of every rule of a dataset for which some method has a mean.

    Parameters
    ----------
    results
        The results of one dataset.
    frame
        Their table, from `tabulate`.
    """
    claims = {}
    for rule in dict.fromkeys(frame["rule"]):
        means = ranked_means(frame, rule)
        if means:
            measured = accuracies(results, rule)
            metric = results.metric or DEFAULT_METRIC
            claims[rule] = make_claim(means, measured, references(results), metric=metric)
    return claims


def all_claims(records: Iterable[Record], frame: pd.DataFrame) -> dict[tuple[str, str], Claim]:
    """The claims of all datasets by the title of the dataset and the rule.

    Parameters
    ----------
    records
        The records of one or more datasets.
    frame
        Their table, from `tabulate`.
    """
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
    metric: str = DEFAULT_METRIC,
) -> Claim:
    """The claim about the best of some methods.

    Parameters
    ----------
    means
        The mean accuracies, the best first.
    measured
        The accuracies of every method.
    against
        The reference of each method, from `references`; empty if erm was not run.
    metric
        What takes the place of the accuracy.
    """
    leader, *others = means
    noise = benchmark_noise(measured)
    rivals = max(1, len(others))
    duels = _duels(leader, others, measured, noise, rivals)
    family = compare_all(measured, against, noise) if against else list(duels.values())
    comparison = next((each for each in family if each.method == leader), None)
    if leader not in against and others:
        comparison = duels.get(others[0])
    beaten = {name for name, duel in duels.items() if duel.verdict == "better"}
    return Claim(
        leader=leader,
        accuracy=means[leader],
        comparison=comparison,
        comparisons=family,
        reference=against.get(leader, ""),
        possible_best=[name for name in means if name not in beaten],
        best_unadapted=_best_unadapted(means) if sees_target_samples(leader) else None,
        metric=metric,
    )


def _best_unadapted(means: Mapping[str, float]) -> tuple[str, float]:
    fair = ((name, mean) for name, mean in means.items() if not sees_target_samples(name))
    return next(fair, ("", math.nan))


def _duels(
    leader: str,
    others: Iterable[str],
    measured: Mapping[str, Accuracies],
    noise: Noise | None,
    rivals: int,
) -> dict[str, Comparison]:
    """The leader against every other method."""
    settings: dict[str, Any] = {"noise": noise, "rivals": rivals}
    compared = {
        name: compare(measured[leader], measured[name], leader, name, **settings) for name in others
    }
    return {name: each for name, each in compared.items() if each is not None}


def leading_rule(frame: pd.DataFrame) -> str:
    """The first rule with a mean that is no oracle; otherwise the oracle, or empty."""
    means = frame[(frame["domain"] == "mean") & frame["accuracy"].notna()]
    rules = list(dict.fromkeys(means["rule"]))
    return min(rules, key=lambda rule: RULES[rule].is_oracle, default="")


def ranked_means(frame: pd.DataFrame, rule: str) -> dict[str, float]:
    """The means of the methods under a rule, the best first, without the upper bound."""
    means = frame[(frame["rule"] == rule) & (frame["domain"] == "mean")].dropna(subset="accuracy")
    pairs = zip(means["method"], means["accuracy"], strict=True)
    fair = [(str(m), float(a)) for m, a in pairs if not str(m).startswith(UPPER_BOUND)]
    sign = 1 if find_metric(shown_metric(frame)).lower_is_better else -1
    # Among equals the reference comes first: it is the simpler method.
    return dict(sorted(fair, key=lambda pair: (sign * pair[1], pair[0] != REFERENCE, pair[0])))
