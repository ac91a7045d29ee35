"""What a benchmark can detect: by simulation, and in its limits."""

import math

import numpy as np
import pytest
from scipy import stats

from afield.reporting.claims import MAX_TRIALS, Power, estimate_power, typical_power
from afield.reporting.comparison import compare
from tests.stores import cells


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
