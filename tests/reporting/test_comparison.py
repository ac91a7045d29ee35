"""Comparisons in pairs: by hand where that is possible, by simulation where it is not."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from afield.reporting.comparison import (
    Comparison,
    Noise,
    arrange,
    benchmark_noise,
    compare,
    compare_all,
    comparisons,
    critical_value,
    estimate_noise,
    mean_error,
    new_domain_error,
    references,
)
from afield.reporting.results import group_records
from tests.stores import benchmark_records, cells, held_out, noisy


def one(*records):
    (group,) = group_records([record for own in records for record in own])
    return group


def test_a_difference_is_the_mean_over_pairs_of_trial_and_domain():
    erm = benchmark_records([[0.5, 0.6, 0.7], [0.5, 0.6, 0.7]])
    other = benchmark_records([[0.6, 0.6, 0.6], [0.8, 0.6, 0.7]], method="vrex")
    (comparison,) = comparisons(one(erm, other), "sources")
    assert comparison.method == "vrex"
    assert comparison.reference == "erm"
    assert comparison.difference == pytest.approx((0.1 + 0.0 - 0.1 + 0.3) / 6)
    assert (comparison.pairs, comparison.trials) == (6, 2)
    assert (comparison.wins, comparison.ties, comparison.losses) == (2, 3, 1)
    low, high = comparison.interval()
    assert low < comparison.difference < high


def test_what_one_of_them_lacks_is_no_pair():
    erm = benchmark_records([[0.5, 0.6, 0.7], [0.1, 0.1, 0.1]])
    other = benchmark_records([[0.6, 0.7, 0.8]], method="vrex")[:2]
    (comparison,) = comparisons(one(erm, other), "sources")
    assert comparison.pairs == 2
    assert comparison.difference == pytest.approx(0.1)
    assert compare({(0, "art"): 0.5}, {(0, "photo"): 0.5}, "a", "b") is None


def test_a_large_and_steady_difference_is_better_and_noise_is_not():
    erm = benchmark_records(noisy(0.7, 3, 3, seed=1))
    good = benchmark_records(noisy(0.8, 3, 3, seed=2), method="good")
    bad = benchmark_records(noisy(0.6, 3, 3, seed=3), method="bad")
    like = benchmark_records(noisy(0.7, 3, 3, seed=4), method="like")
    same = benchmark_records(noisy(0.7, 3, 3, seed=1), method="same")
    comparison = comparisons(one(erm, good, bad, like, same), "sources")
    verdicts = {each.method: each.verdict for each in comparison}
    assert verdicts == {"good": "better", "like": "unclear", "same": "level", "bad": "worse"}
    assert [each.difference for each in comparison] == sorted(
        (each.difference for each in comparison), reverse=True
    )


def test_few_pairs_or_one_trial_are_too_few_however_large_the_difference():
    for rows in ([[0.5, 0.5, 0.5]], [[0.5, 0.5], [0.5, 0.5]]):
        domains = ("art", "photo", "sketch")[: len(rows[0])]
        erm = benchmark_records(rows, domains=domains)
        higher = [[0.9 for _ in row] for row in rows]
        other = benchmark_records(higher, domains=domains, method="vrex")
        (comparison,) = comparisons(one(erm, other), "sources")
        assert comparison.verdict == "too few"


def test_an_interval_is_students_and_a_correction_shares_the_five_percent():
    comparison = Comparison("a", "b", 0.1, 12, 4, 8, 0, 4, stderr=0.02, freedom=3.0, rivals=5)
    for corrected, level in ((False, 0.95), (True, 0.99)):
        expected = stats.t(3, 0.1, 0.02).interval(level)
        assert comparison.interval(corrected=corrected) == pytest.approx(expected)
    assert np.isnan(comparison.interval(new_domain=True)).all()


def test_domains_of_one_trial_are_not_independent_where_they_agree():
    generator = np.random.default_rng(0)
    # Two trials, one good and one bad: twenty domains each say little about a third trial.
    together = np.array([[0.1], [0.0]]) + 0.01 * generator.normal(size=(2, 20))
    apart = np.array([[0.1, 0.0] * 10, [0.0, 0.1] * 10]) + 0.01 * generator.normal(size=(2, 20))
    errors = [compare(cells(grid), cells(0 * grid), "a", "b").stderr for grid in (together, apart)]
    assert errors[0] == pytest.approx(0.05, rel=0.1)
    assert errors[1] < 0.01


def test_other_methods_show_how_much_the_domains_of_a_trial_agree():
    generator = np.random.default_rng(0)
    grids = generator.normal(size=(30, 3, 4))
    measured = {f"m{n}": cells(grid) for n, grid in enumerate(grids)}
    pairs = dict.fromkeys(list(measured)[1:], "m0")
    result = compare_all(measured, pairs)
    assert {each.rivals for each in result} == {29}
    assert result[0].freedom > 5
    shared = np.concatenate([grids[:1], grids[1:] + 3 * generator.normal(size=(29, 3, 1))])
    wide = compare_all({f"m{n}": cells(grid) for n, grid in enumerate(shared)}, pairs)
    narrow, wider = ({each.method: each for each in every} for every in (result, wide))
    assert np.median([wider[name].stderr / narrow[name].stderr for name in narrow]) > 3


def test_pairs_that_do_not_differ_are_no_evidence():
    for differing, verdict in ((5, "too few"), (6, "better")):
        ties = Comparison("a", "b", 0.1, 12, 4, differing, 12 - differing, 0, 0.001, 3.0)
        assert ties.verdict == verdict


def test_one_pair_has_no_interval():
    comparison = compare({(0, "a"): 0.6}, {(0, "a"): 0.5}, "a", "b")
    assert np.isnan(comparison.interval()).all()
    assert comparison.verdict == "too few"


def test_trials_that_lack_domains_count_with_their_mean():
    one = {(0, "a"): 0.6, (0, "b"): 0.7, (1, "a"): 0.8, (2, "b"): 0.7}
    comparison = compare(one, dict.fromkeys(one, 0.5), "a", "b")
    assert comparison.difference == pytest.approx((0.15 + 0.3 + 0.2) / 3)
    assert comparison.stderr == pytest.approx(stats.sem([0.15, 0.3, 0.2]))
    assert comparison.freedom == pytest.approx(2)
    assert (comparison.pairs, comparison.trials) == (4, 3)
    assert comparison.new_stderr >= comparison.stderr
    assert comparison.new_freedom == 1


def test_held_out_domains_are_compared_one_by_one():
    records = [
        held_out(method, [0.5 + plus, 0.6 + plus, 0.7], trial=trial)
        for method, plus in (("erm", 0.0), ("vrex", 0.1))
        for trial in range(2)
    ]
    (comparison,) = comparisons(one(records), "validation")
    assert (comparison.pairs, comparison.trials, comparison.wins, comparison.ties) == (6, 2, 4, 2)
    assert comparison.difference == pytest.approx(0.2 / 3)


def test_every_row_is_compared_with_erm_of_its_own_settings():
    rows = [[0.5, 0.5, 0.5]]
    chosen = {"method": "vrex", "given": {"batch": 8}}
    records = [
        benchmark_records(rows),
        benchmark_records(rows, given={"batch": 8}, batch=8),
        benchmark_records(rows, **chosen, batch=8),
        benchmark_records(rows, method="vrex"),
        benchmark_records(rows, method="vrex", given={"vrex.penalty": 3.0}, params={"penalty": 3}),
        benchmark_records(rows, method="dann", given={"batch": 4}, batch=4),
        benchmark_records(rows, method="target_expert", role="merged", experts=("x",)),
    ]
    assert references(one(*records)) == {
        "erm batch=8": "erm",
        "vrex batch=8": "erm batch=8",
        "vrex": "erm",
        "vrex penalty=3.0": "erm",
        "dann batch=4": "erm",
    }


def test_without_erm_there_is_nothing_to_compare_with():
    result = one(benchmark_records([[0.5, 0.5, 0.5]], method="vrex"))
    assert references(result) == {}
    assert comparisons(result, "sources") == []


def test_six_pairs_of_two_trials_are_the_fewest_that_decide():
    known = {"method": "a", "reference": "erm", "wins": 5, "ties": 0, "losses": 0}
    error = {"stderr": 0.001, "freedom": 5.0}
    decided = Comparison(**known, difference=0.1, pairs=6, trials=2, **error)
    assert decided.verdict == "better"
    assert replace(decided, difference=-0.1).verdict == "worse"
    assert replace(decided, pairs=5).verdict == "too few"
    assert replace(decided, trials=1).verdict == "too few"
    assert replace(decided, ties=6).verdict == "level"


def test_an_interval_that_ends_at_zero_is_unclear():
    error = {"stderr": 0.25, "freedom": 4.0}
    reach = critical_value(4.0, 1) * 0.25
    known = {"method": "a", "reference": "erm", "wins": 6, "ties": 0, "losses": 0}
    for difference in (reach, -reach):
        ends = Comparison(**known, difference=difference, pairs=6, trials=2, **error)
        assert 0.0 in ends.interval()
        assert ends.verdict == "unclear"


def test_the_plainest_erm_has_no_average_and_the_shortest_name():
    rows = [
        benchmark_records([[0.5, 0.5, 0.5]], average="ema"),
        benchmark_records([[0.5, 0.5, 0.5]], given={"batch": 1234567}),
        benchmark_records([[0.5, 0.5, 0.5]], given={"lr": 1}),
        benchmark_records([[0.5, 0.5, 0.5]], method="vrex", given={"weight_decay": 1}),
    ]
    result = references(one(*rows))
    assert result["vrex weight_decay=1"] == "erm lr=1"
    assert result["erm + ema"] == "erm lr=1"
    assert "erm lr=1" not in result


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def correlated(correlation, *shape, seed=0):
    generator = np.random.default_rng(seed)
    shared, own = generator.normal(size=(*shape[:-1], 1)), generator.normal(size=shape)
    return math.sqrt(correlation) * shared + math.sqrt(1 - correlation) * own


@pytest.mark.parametrize("shape", [(3, 4), (5, 2), (4, 1)])
def test_with_two_methods_the_error_is_that_of_students_test_over_trials(shape):
    one, other = normal(2, *shape)
    stderr, freedom = mean_error(one - other, estimate_noise(np.stack([one, other])))
    assert stderr == pytest.approx(stats.sem((one - other).mean(axis=1)))
    assert freedom == pytest.approx(shape[0] - 1)


def test_many_methods_show_how_much_the_domains_of_a_trial_share():
    for truth in (0.0, 0.3, 0.6):
        noise = estimate_noise(correlated(truth, 400, 3, 4))
        assert noise.correlation == pytest.approx(truth, abs=0.05)
        assert 250 < noise.contrasts < 399
    assert (noise.trials, noise.domains) == (3, 4)


def test_what_all_methods_share_in_a_trial_does_not_count():
    scores = normal(5, 3, 4)
    shifted = scores + 10 * normal(3, 1, seed=1)
    assert estimate_noise(shifted).correlation == pytest.approx(estimate_noise(scores).correlation)


def test_equal_and_independent_domains_count_fully_and_one_noisy_domain_counts_alone():
    assert estimate_noise(normal(400, 3, 4)).effective_domains == pytest.approx(4, rel=0.05)
    one_noisy = normal(400, 3, 4) * np.array([100.0, 1, 1, 1])
    assert estimate_noise(one_noisy).effective_domains == pytest.approx(1, rel=0.05)
    # Domains that agree in every trial say no more than one of them.
    assert estimate_noise(correlated(0.999, 400, 3, 4)).effective_domains < 1.1


def test_correlated_domains_count_as_fewer():
    noise = estimate_noise(correlated(0.5, 2000, 3, 4))
    # The squared correlation of the others is added to the share of each domain.
    assert noise.effective_domains == pytest.approx(1 / (1 / 4 + 3 / 4 * 0.5**2), rel=0.05)


def test_two_methods_and_two_trials_are_the_fewest_that_show_noise():
    assert estimate_noise(normal(2, 2, 3)).trials == 2
    assert estimate_noise(normal(1, 3, 3)) == estimate_noise(normal(3, 1, 3)) == Noise(domains=3)


def test_one_noisy_method_is_one_contrast():
    scores = normal(10, 3, 4)
    scores[0] *= 1000
    assert estimate_noise(scores).contrasts == pytest.approx(1.1, abs=0.1)


def test_more_methods_give_more_degrees_of_freedom_but_never_more_than_their_domains_have():
    freedoms = [mean_error(normal(3, 4), estimate_noise(normal(m, 3, 4)))[1] for m in (2, 5, 400)]
    assert freedoms == sorted(freedoms)
    assert freedoms[0] == pytest.approx(2)
    assert freedoms[-1] == pytest.approx(8, rel=0.05)


def test_a_correlation_widens_the_error_by_the_design_effect():
    grid = normal(3, 4)
    alone = Noise(0.0, 100.0, 3, 4, 4.0)
    shared = Noise(0.5, 100.0, 3, 4, 4.0)
    assert mean_error(grid, shared)[0] == pytest.approx(math.sqrt(2.5) * mean_error(grid, alone)[0])
    assert mean_error(grid, alone)[0] == pytest.approx(
        math.sqrt(grid.var(axis=0, ddof=1).mean() / 12)
    )


def test_new_domains_are_never_known_better_than_these():
    for seed in range(20):
        grid = normal(3, 4, seed=seed) + (seed % 3) * normal(1, 4, seed=100 + seed)
        noise = estimate_noise(np.stack([grid / 2, -grid / 2]))
        stderr, freedom = mean_error(grid, noise)
        new_stderr, new_freedom = new_domain_error(cells(grid), grid, noise)
        assert new_stderr >= stderr
        assert new_freedom <= freedom


def test_without_shared_noise_the_error_for_new_domains_is_that_of_the_domain_means():
    grid = 10 * normal(1, 5) + 0.1 * normal(4, 5, seed=1)
    noise = Noise(0.0, 100.0, 4, 5, 5.0)
    stderr, freedom = new_domain_error(cells(grid), grid, noise)
    assert stderr == pytest.approx(stats.sem(grid.mean(axis=0)))
    assert freedom == 4
    shared = Noise(0.5, 100.0, 4, 5, 5.0)
    within = grid.var(axis=0, ddof=1).mean()
    assert new_domain_error(cells(grid), grid, shared)[0] == pytest.approx(
        math.sqrt(stats.sem(grid.mean(axis=0)) ** 2 + 0.5 * within / 4)
    )


def test_one_trial_or_one_domain_has_no_error():
    assert np.isnan(mean_error(normal(1, 4), Noise(domains=4))).all()
    for grid in (normal(1, 4), normal(4, 1)):
        noise = estimate_noise(np.stack([grid / 2, -grid / 2]))
        assert np.isnan(new_domain_error(cells(grid), grid, noise)).all()


def test_equal_results_have_no_noise():
    noise = estimate_noise(np.ones((3, 3, 4)))
    assert noise.correlation == 0
    assert mean_error(np.ones((3, 4)), noise)[0] == 0


def test_trials_with_different_domains_have_one_mean_each():
    grid = normal(3, 4)
    assert (arrange(cells(grid)) == grid).all()
    uneven = {(0, "a"): 1.0, (0, "b"): 3.0, (1, "c"): 5.0}
    assert arrange(uneven).tolist() == [[2.0], [5.0]]


def test_the_noise_of_a_benchmark_comes_from_methods_and_trials_that_are_complete():
    scores = normal(4, 3, 4)
    every = {f"m{n}": cells(own) for n, own in enumerate(scores)}
    assert benchmark_noise(every) == estimate_noise(scores)
    partial = dict(every["m0"])
    del partial[0, "d0"]
    assert benchmark_noise({**every, "m0": partial}) == estimate_noise(scores[:, 1:])
    assert benchmark_noise({**every, "part": {(0, "d0"): 1.0}}) == estimate_noise(scores)
    assert benchmark_noise({"m0": every["m0"]}) is None
    one_trial = {name: cells(own[:1]) for name, own in zip("ab", scores, strict=False)}
    assert benchmark_noise(one_trial) is None
    assert benchmark_noise({}) is None
