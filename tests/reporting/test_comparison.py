"""Comparisons in pairs: by hand where that is possible, by simulation where it is not."""

import numpy as np
import pytest
from scipy import stats

from afield.reporting.comparison import bootstrap_interval, compare, comparisons, references
from afield.reporting.results import group_records
from tests.stores import benchmark_records, held_out, noisy


def one(*records):
    (found,) = group_records([record for own in records for record in own])
    return found


def test_a_difference_is_the_mean_over_pairs_of_trial_and_domain():
    erm = benchmark_records([[0.5, 0.6, 0.7], [0.5, 0.6, 0.7]])
    other = benchmark_records([[0.6, 0.6, 0.6], [0.8, 0.6, 0.7]], method="vrex")
    (found,) = comparisons(one(erm, other), "sources")
    assert found.method == "vrex"
    assert found.reference == "erm"
    assert found.difference == pytest.approx((0.1 + 0.0 - 0.1 + 0.3) / 6)
    assert (found.pairs, found.trials) == (6, 2)
    assert (found.wins, found.ties, found.losses) == (2, 3, 1)
    assert found.low < found.difference < found.high


def test_what_one_of_them_lacks_is_no_pair():
    erm = benchmark_records([[0.5, 0.6, 0.7], [0.1, 0.1, 0.1]])
    other = benchmark_records([[0.6, 0.7, 0.8]], method="vrex")[:2]
    (found,) = comparisons(one(erm, other), "sources")
    assert found.pairs == 2
    assert found.difference == pytest.approx(0.1)
    assert compare({0: {"art": None}}, {0: {"art": None}}, "a", "b") is None


def test_a_large_and_steady_difference_is_better_and_noise_is_not():
    erm = benchmark_records(noisy(0.7, 3, 3, seed=1))
    good = benchmark_records(noisy(0.8, 3, 3, seed=2), method="good")
    bad = benchmark_records(noisy(0.6, 3, 3, seed=3), method="bad")
    like = benchmark_records(noisy(0.7, 3, 3, seed=4), method="like")
    same = benchmark_records(noisy(0.7, 3, 3, seed=1), method="same")
    found = comparisons(one(erm, good, bad, like, same), "sources")
    verdicts = {each.method: each.verdict for each in found}
    assert verdicts == {"good": "better", "like": "unclear", "same": "level", "bad": "worse"}
    assert [each.difference for each in found] == sorted(
        (each.difference for each in found), reverse=True
    )


def test_few_pairs_or_one_trial_are_too_few_however_large_the_difference():
    for rows in ([[0.5, 0.5, 0.5]], [[0.5, 0.5], [0.5, 0.5]]):
        domains = ("art", "photo", "sketch")[: len(rows[0])]
        erm = benchmark_records(rows, domains=domains)
        higher = [[0.9 for _ in row] for row in rows]
        other = benchmark_records(higher, domains=domains, method="vrex")
        (found,) = comparisons(one(erm, other), "sources")
        assert found.verdict == "too few"


@pytest.mark.slow
@pytest.mark.parametrize("pairs", [6, 18])
def test_the_interval_of_normal_differences_holds_the_truth_as_often_as_students(pairs):
    generator = np.random.default_rng(pairs)
    held = expected = 0
    for _ in range(300):
        values = generator.normal(0.3, 1.0, size=pairs)
        low, high = bootstrap_interval({str(n): [value] for n, value in enumerate(values)})
        held += low <= 0.3 <= high
        low, high = stats.t(pairs - 1, values.mean(), stats.sem(values)).interval(0.95)
        expected += low <= 0.3 <= high
    # Plain percentiles of six pairs miss it twice as often.
    assert abs(held - expected) <= 0.03 * 300


def test_domains_of_one_run_are_not_independent_trials():
    generator = np.random.default_rng(0)
    # Two runs, one good and one bad: twenty domains each say little of a third run.
    runs = {"a": 0.1 + 0.01 * generator.normal(size=20), "b": 0.01 * generator.normal(size=20)}
    low, high = bootstrap_interval(runs)
    assert low < 0.02
    assert high > 0.08
    singly = bootstrap_interval(
        {f"{name}{n}": [v] for name, own in runs.items() for n, v in enumerate(own)}
    )
    assert high - low > 1.5 * (singly[1] - singly[0])


@pytest.mark.slow
def test_any_number_of_runs_with_several_domains_has_an_interval():
    generator = np.random.default_rng(0)
    low, high = bootstrap_interval(
        {str(n): generator.normal(0.01, 0.05, size=3) for n in range(80)}
    )
    assert low < 0.01 < high
    assert high - low < 0.03


def test_one_pair_has_no_interval_and_the_same_numbers_give_the_same_interval():
    assert np.isnan(bootstrap_interval({"a": [0.1]})).all()
    runs = {"a": [0.1], "b": [0.2], "c": [0.0]}
    assert bootstrap_interval(runs) == bootstrap_interval(runs)


def test_held_out_domains_are_compared_one_by_one():
    records = [
        held_out(method, [0.5 + plus, 0.6 + plus, 0.7], trial=trial)
        for method, plus in (("erm", 0.0), ("vrex", 0.1))
        for trial in range(2)
    ]
    (found,) = comparisons(one(records), "validation")
    assert (found.pairs, found.trials, found.wins, found.ties) == (6, 2, 4, 2)
    assert found.difference == pytest.approx(0.2 / 3)


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
    found = one(benchmark_records([[0.5, 0.5, 0.5]], method="vrex"))
    assert references(found) == {}
    assert comparisons(found, "sources") == []
