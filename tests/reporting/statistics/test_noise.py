"""How much differences vary: Student's test in its limits, and what trials share."""

import math

import numpy as np
import pytest
from scipy import stats

from afield.reporting.comparison import (
    Noise,
    arrange,
    benchmark_noise,
    estimate_noise,
    mean_error,
    new_domain_error,
)
from tests.stores import cells


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def correlated(correlation, *shape, seed=0):
    generator = np.random.default_rng(seed)
    shared, own = generator.normal(size=(*shape[:-1], 1)), generator.normal(size=shape)
    return math.sqrt(correlation) * shared + math.sqrt(1 - correlation) * own


@pytest.mark.parametrize("shape", [(3, 4), (5, 2), (4, 1)])
def test_with_two_methods_the_error_is_that_of_students_test_over_trials(shape):
    one, other = normal(2, *shape)
    noise = estimate_noise(np.stack([one, other]))
    stderr, freedom = mean_error(one - other, noise)
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
