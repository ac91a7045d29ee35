"""Who leads, against whom, and that picking the best of many is paid for."""

import math

import numpy as np
import pytest
from scipy import stats

from afield.reporting.claims import (
    MAX_TRIALS,
    Power,
    build_claims,
    estimate_power,
    leading_rule,
    make_claim,
    ranked_means,
    typical_power,
)
from afield.reporting.comparison import compare
from afield.reporting.results import group_records
from afield.reporting.sentences import (
    _unbeaten_headline,
    describe_claim,
    describe_classical,
)
from afield.reporting.table import tabulate
from afield.runs.row import Row
from tests.stores import benchmark_records, cells, held_out, noisy


def claim(scores, *, erm=True):
    """The claim about arrays by name; the first is the reference."""
    means = {name: float(np.mean(own)) for name, own in scores.items()}
    ranked = dict(sorted(means.items(), key=lambda pair: -pair[1]))
    first, *others = scores
    measured = {name: cells(own) for name, own in scores.items()}
    rows = {name: Row(name) for name in scores}
    return make_claim(ranked, measured, dict.fromkeys(others, first) if erm else {}, rows=rows)


def random_scores(count, *, seed=0, trials=3, domains=4, gain=0.0):
    generator = np.random.default_rng(seed)
    scores = 0.7 + 0.01 * generator.normal(size=(count, trials, domains))
    scores[1:2] += gain
    return {("erm" if n == 0 else f"m{n}"): own for n, own in enumerate(scores)}


def test_the_leader_is_compared_with_the_reference():
    result = claim(random_scores(5, gain=0.1))
    assert (result.leader, result.reference) == ("m1", "erm")
    assert (result.comparison.method, result.comparison.reference) == ("m1", "erm")
    assert result.comparison.rivals == 4
    assert result.comparisons[0].method == "m1"
    assert len(result.comparisons) == 4
    assert result.is_more_than_chance
    assert result.possible_best == ["m1"]


@pytest.mark.parametrize("erm", [True, False])
def test_a_reference_that_leads_and_a_leader_without_one_are_compared_with_the_second(erm):
    scores = random_scores(4)
    scores["erm" if erm else "m3"] = 0.8 + 0.001 * np.random.default_rng(1).normal(size=(3, 4))
    result = claim(scores, erm=erm)
    second = sorted(scores, key=lambda name: -scores[name].mean())[1]
    assert (result.comparison.reference, result.comparison.rivals) == (second, 3)
    assert result.reference == ""
    assert result.is_more_than_chance
    if not erm:
        assert {each.reference for each in result.comparisons} == set(scores) - {"m3"}


def test_with_one_rival_the_claim_is_students_test_over_trials():
    seen = set()
    for seed in range(60):
        scores = random_scores(2, seed=seed, gain=0.015)
        one, other = (scores[name].mean(axis=1) for name in ("m1", "erm"))
        p = stats.ttest_rel(one, other).pvalue
        result = claim(scores)
        assert result.is_more_than_chance == (p < 0.05)
        assert result.comparison.interval() == result.comparison.interval(corrected=False)
        seen.add(result.is_more_than_chance)
    assert seen == {True, False}


@pytest.mark.parametrize("scale", [0.0, 1e-6, 0.01, 0.3])
@pytest.mark.parametrize("shape", [(1, 1), (1, 4), (2, 1), (3, 1), (2, 2), (3, 4), (6, 3)])
@pytest.mark.parametrize("rivals", [1, 2, 7])
def test_no_benchmark_crashes_and_a_correction_never_narrows_an_interval(scale, shape, rivals):
    trials, domains = shape
    generator = np.random.default_rng(rivals)
    scores = {f"m{n}": 0.5 + scale * generator.normal(size=shape) for n in range(rivals + 1)}
    result = claim(scores)
    assert result.verdict in ("better", "unclear", "level", "too few")
    assert result.leader in result.possible_best
    if trials == 1 or scale == 0:
        assert not result.is_more_than_chance
        assert result.trials_range is None
    for each in result.comparisons:
        (low, high), (wide_low, wide_high) = each.interval(corrected=False), each.interval()
        if trials > 1:
            assert wide_low <= low <= each.difference <= high <= wide_high
        new_low, new_high = each.interval(new_domain=True)
        if trials > 1 and domains > 1:
            assert new_low <= wide_low + 1e-12
            assert new_high >= wide_high - 1e-12


def test_the_same_difference_takes_more_evidence_among_more_rivals():
    scores = random_scores(20, seed=3)
    widths = []
    for count in (1, 4, 9, 19):
        comparison = claim(dict(list(scores.items())[: count + 1])).comparisons[0]
        low, high = comparison.interval()
        alone_low, alone_high = comparison.interval(corrected=False)
        widths.append((high - low) / (alone_high - alone_low))
    assert widths[0] == pytest.approx(1)
    assert widths == sorted(set(widths))


@pytest.mark.slow
@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_equal_methods_rarely_have_a_leader_that_is_better_and_a_better_method_is_found(
    correlation,
):
    generator = np.random.default_rng(0)
    wrong = alone = result = 0
    for _ in range(300):
        shared, own = generator.normal(size=(10, 3, 1)), generator.normal(size=(10, 3, 4))
        noise = np.sqrt(correlation) * shared + np.sqrt(1 - correlation) * own
        scores = {f"m{n}": each for n, each in enumerate(0.7 + 0.01 * noise)}
        judged = claim(scores)
        wrong += judged.is_more_than_chance
        alone += judged.comparison.interval(corrected=False).low > 0
        scores["m1"] = scores["m1"] + 0.05
        result += claim(scores).is_more_than_chance
    assert wrong <= 0.06 * 300
    assert alone > 0.06 * 300
    assert result > 0.75 * 300


def test_the_best_method_is_among_the_possible_ones():
    scores = random_scores(6)
    scores["m2"] = scores["m2"] + 0.002
    scores["m5"] = scores["m5"] - 0.3
    result = claim(scores)
    assert "m5" not in result.possible_best
    assert set(result.possible_best) == set(scores) - {"m5"}
    assert result.possible_best[0] == result.leader


def test_the_trials_that_would_settle_a_difference_are_more_than_there_are():
    result = claim(random_scores(3, seed=5))
    assert result.verdict == "unclear"
    low, high = result.trials_range
    assert 3 < low <= 1000
    assert high is None or low <= high


def test_trials_that_all_agree_say_nothing_about_chance():
    equal = np.full((3, 4), 0.5)
    assert claim({"erm": equal, "m1": equal + 0.25}).verdict == "too few"
    assert claim({"erm": equal, "m1": equal}).verdict == "level"
    assert claim({"erm": equal}).verdict == "alone"
    assert claim({"erm": equal}).trials_range is None


def test_every_rule_with_a_mean_has_a_claim():
    erm = benchmark_records(noisy(0.7, 3, 3, seed=1))
    good = benchmark_records(noisy(0.8, 3, 3, seed=2), method="good")
    bound = benchmark_records(noisy(0.9, 3, 3), method="target_expert", role="merged")
    records = [*erm, *good, *bound]
    (results,) = group_records(records)
    frame = tabulate(records)
    claims = build_claims(results, frame)
    assert list(claims) == ["sources", "target"]
    assert {each.leader for each in claims.values()} == {"good"}
    means = frame.query("domain == 'mean' and rule == 'sources'").set_index("method")["accuracy"]
    assert claims["sources"].accuracy == means["good"]
    assert list(ranked_means(frame, "sources")) == ["good", "erm"]
    # Of equals the reference is first, and the others are in the order of their names.
    equal = [benchmark_records([[0.5] * 3], method=name) for name in ("zeta", "erm", "alpha")]
    tied = tabulate([record for records in equal for record in records])
    assert list(ranked_means(tied, "sources")) == ["erm", "alpha", "zeta"]
    (results,) = group_records(erm[:1])
    assert build_claims(results, tabulate(erm[:1])) == {}


def test_trials_that_hold_out_different_domains_are_units():
    records = [
        held_out(method, row, trial=trial)
        for method, plus in (("erm", 0.0), ("vrex", 0.1))
        for trial, row in enumerate(noisy(0.6 + plus, 3, 2 + 2))
    ]
    (results,) = group_records(records)
    result = build_claims(results, tabulate(records))["validation"]
    assert (result.leader, result.comparison.trials, result.comparison.pairs) == ("vrex", 3, 12)


def test_the_oracle_leads_only_where_nothing_else_can():
    erm = benchmark_records(noisy(0.7, 3, 3, seed=1))
    assert leading_rule(tabulate(erm)) == "sources"
    assert leading_rule(tabulate(erm, rules="target")) == "target"
    assert leading_rule(tabulate([])) == ""
    many = [held_out("erm", [0.5, 0.6], trial=t) for t in range(2)]
    assert leading_rule(tabulate(many)) == "validation"


def test_a_leader_that_has_seen_target_samples_is_named_with_the_best_one_that_has_not():
    scores = {"erm + t3a": 0.9, "erm": 0.8, "coral": 0.7}
    measured = {name: {(0, "a"): mean, (1, "a"): mean} for name, mean in scores.items()}
    rows = {"erm + t3a": Row("erm", adaptation="t3a")}
    rows |= {name: Row(name) for name in ("erm", "coral", "arm")}
    adapted = make_claim(scores, measured, {}, rows=rows)
    assert adapted.best_unadapted == ("erm", 0.8)
    assert describe_claim(adapted).endswith(
        " It has seen unlabelled target samples; without, erm leads with 80.0\u00a0%."
    )
    plain = make_claim({"erm": 0.8, "coral": 0.7}, measured, {}, rows=rows)
    assert plain.best_unadapted is None
    assert "unlabelled" not in describe_claim(plain)
    alone = make_claim({"arm": 0.8}, {"arm": measured["erm"]}, {}, rows=rows)
    assert describe_claim(alone).endswith("no comparison. It has seen unlabelled target samples.")


def beside_classical(**gains):
    """A claim about erm, one better method and two classical ones, with these gains."""
    generator = np.random.default_rng(4)
    noise = 0.005 * generator.normal(size=(4, 5, 4))
    names = ("erm", "better", "logistic", "extra_trees")
    scores = {n: 0.7 + gains.get(n, 0.0) + each for n, each in zip(names, noise, strict=True)}
    means = {name: float(np.mean(own)) for name, own in scores.items()}
    rows = {name: Row(name, is_classical=name in names[2:]) for name in names}
    against = dict.fromkeys(names[1:], "erm")
    measured = {name: cells(own) for name, own in scores.items()}
    ranked = dict(sorted(means.items(), key=lambda pair: -pair[1]))
    return make_claim(ranked, measured, against, rows=rows)


def test_a_method_above_all_classical_ones_is_named_with_the_number_of_comparisons():
    result = beside_classical(better=0.1)
    assert result.above_classical == ["better"]
    assert result.unbeaten == []
    assert {each.rivals for each in result.with_classical} == {4}
    assert len(result.with_classical) == 4
    sentence = describe_classical(result)
    assert "Clearly better than all classical methods" in sentence
    assert "better; corrected for 4 comparisons" in sentence.replace("\u2068", "").replace(
        "\u2069", ""
    )


def test_a_classical_method_that_nothing_clearly_beats_is_in_the_headline():
    result = beside_classical(better=0.102, logistic=0.1, extra_trees=-0.1)
    assert result.leader == "better"
    assert result.unbeaten == ["logistic"]
    assert result.above_classical == []
    words = describe_classical(result).replace("\u2068", "").replace("\u2069", "")
    assert "none clearly beats logistic" in words
    assert (
        "No method clearly beats"
        in _unbeaten_headline(result, "logistic", "here", [], ".").sentence
    )
    assert describe_classical(claim(random_scores(4))) == ""


def test_classical_methods_do_not_replace_the_reference():
    result = beside_classical(logistic=0.1)
    assert (result.leader, result.reference) == ("logistic", "erm")
    assert "logistic" in result.unbeaten


def test_eighty_percent_of_benchmarks_detect_the_detectable_difference():
    generator = np.random.default_rng(0)
    trials, count, rivals = 5, 20_000, 4
    power = Power(trials, 1 / math.sqrt(trials), trials - 1, rivals=rivals)
    values = power.detectable + generator.normal(size=(count, trials))
    p = stats.ttest_1samp(values, 0.0, axis=1).pvalue
    assert (p < 0.05 / rivals).mean() == pytest.approx(0.8, abs=0.01)
    assert power.probability(power.detectable) == pytest.approx(0.8)


def test_the_fewest_trials_are_those_of_a_paired_t_test():
    power = Power(5, 1 / math.sqrt(5), 4)
    # A difference of half a standard deviation takes 34 pairs (Cohen, 1988).
    assert power.trials_for(0.5) == 34
    assert power.trials_for(-0.5) == 34
    assert power.probability(0.5, 34) >= 0.8 > power.probability(0.5, 33)


def test_no_difference_is_found_as_often_as_the_level_says():
    assert Power(5, 0.01, 4).probability(0.0) == pytest.approx(0.05, rel=0.01)
    assert Power(5, 0.01, 4, rivals=10).probability(0.0) == pytest.approx(0.005, rel=0.05)


def test_more_rivals_take_more_trials_and_hide_larger_differences():
    powers = [Power(3, 0.01, 2, rivals=rivals) for rivals in (1, 4, 9, 19)]
    detectable = [power.detectable for power in powers]
    needed = [power.trials_for() for power in powers]
    assert detectable == sorted(set(detectable))
    assert needed == sorted(needed)
    assert needed[0] < needed[-1]


def test_large_differences_are_certain_and_none_takes_too_many_trials():
    power = Power(3, 0.001, 2)
    assert power.probability(0.9) == pytest.approx(1, abs=1e-3)
    assert Power(30, 0.001, 29).probability(0.9) == 1
    assert power.trials_for(0.9) == 2
    assert power.trials_for(0.0) is None
    assert Power(3, 0.5, 2).trials_for() is None
    assert MAX_TRIALS == 1000


def test_one_trial_and_equal_trials_show_no_spread():
    one = compare(cells([[0.9, 0.8]]), cells([[0.5, 0.5]]), "a", "b")
    equal = compare(cells([[0.9] * 4] * 3), cells([[0.5] * 4] * 3), "a", "b")
    for comparison in (one, equal):
        power = estimate_power(comparison)
        assert not power.known
        assert math.isnan(power.detectable)
        assert math.isnan(power.probability(0.1))
        assert power.trials_for() is None
    assert typical_power([one, equal]) is None
    assert typical_power([]) is None


def test_the_typical_comparison_has_the_root_mean_square_error():
    generator = np.random.default_rng(0)
    erm = cells(0.7 + 0.01 * generator.normal(size=(3, 4)))
    compared = [
        compare(cells(0.7 + s * generator.normal(size=(3, 4))), erm, "m", "erm", rivals=2)
        for s in (0.01, 0.05)
    ]
    power = typical_power(compared)
    errors = [each.stderr for each in compared]
    assert power.stderr == pytest.approx(math.sqrt((errors[0] ** 2 + errors[1] ** 2) / 2))
    assert (power.trials, power.freedom, power.rivals) == (3, pytest.approx(2), 2)


def test_a_range_of_trials_holds_the_sufficient_number_as_often_as_it_says():
    """Student's test of one difference, where the number is known (Cohen, 1988)."""
    generator = np.random.default_rng(0)
    trials, needed, lead = 5, 34, 0.5
    assert Power(trials, 1 / math.sqrt(trials), trials - 1).trials_for(lead) == needed
    too_high = too_low = count = 0
    while count < 400:
        values = lead + generator.normal(size=trials)
        power = Power(trials, float(stats.sem(values)), trials - 1)
        if values.mean() > 0 and (ends := power.trials_range(float(values.mean()))):
            low, high = ends
            count += 1
            too_high += low is None or low > needed
            too_low += high is not None and high < needed
    # Each end errs in a fifth of the cases; three standard errors are 6 %.
    assert too_high / count == pytest.approx(0.2, abs=0.06)
    assert too_low / count == pytest.approx(0.2, abs=0.06)


def test_a_lead_takes_more_trials_if_it_is_smaller_or_was_picked_from_more():
    def ends(lead, **fields):
        return [
            end or math.inf
            for end in Power(**{"trials": 5, "stderr": 0.01, "freedom": 20, **fields}).trials_range(
                lead
            )
        ]

    sizes = [ends(lead) for lead in (0.019, 0.017, 0.014, 0.01, 0.005)]
    rivals = [ends(0.019, rivals=count) for count in (1, 2, 4, 9)]
    for ranges in (sizes, rivals):
        for column in zip(*ranges, strict=True):
            assert list(column) == sorted(column)
            assert column[0] < column[-1]
    for low, high in sizes + rivals:
        assert 6 <= low <= high


def test_no_lead_takes_more_trials_than_are_searched_and_a_settled_one_takes_none():
    power = Power(5, 0.01, 20)
    for lead in (0.0, -0.02):
        assert power.trials_range(lead) == (None, None)
    reach = 0.01 * stats.t.ppf(0.975, 20)
    assert power.trials_range(1.001 * reach) is None
    assert power.trials_range(0.999 * reach) == (6, 6)
    assert Power(1, 0.01, 20).trials_range(0.01) is None
