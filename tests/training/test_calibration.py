import numpy as np
import pytest
import torch
import torch.nn.functional as F

from afield.training.calibration import (
    TEMPERATURE_RANGE,
    balanced_quantiles,
    calibration_error,
    fit_temperature,
    percentile_ranks,
    reliability_bins,
    selective_accuracy,
)


def drawn(temperature: float, n: int = 4000, seed: int = 0):
    """Logits that are right as often as softmax(logits / temperature) says."""
    generator = torch.Generator().manual_seed(seed)
    honest = 2 * torch.randn(n, 5, generator=generator)
    y = torch.multinomial(honest.softmax(dim=1), 1, generator=generator).flatten()
    return temperature * honest, y


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_the_temperature_that_labels_were_drawn_with_is_found(temperature):
    logits, y = drawn(temperature)
    assert fit_temperature([logits], [y]) == pytest.approx(temperature, rel=0.08)


def test_it_is_a_minimum_of_the_mean_over_domains():
    parts = [drawn(0.7, n=300), drawn(2.5, n=900, seed=1)]
    logits, labels = zip(*parts, strict=True)
    best = fit_temperature(logits, labels)

    def risk(t):
        losses = [F.cross_entropy(x.double() / t, y, label_smoothing=1 / 1201) for x, y in parts]
        return float(sum(losses) / 2)

    assert risk(best) < min(risk(best * 1.02), risk(best / 1.02))


def test_domains_weigh_the_same_however_large_they_are():
    small, large = drawn(0.5, n=400), drawn(2.0, n=4000, seed=1)
    once = fit_temperature(*zip(small, large, strict=True))
    tenfold = (small[0].repeat(10, 1), small[1].repeat(10))
    assert fit_temperature(*zip(tenfold, large, strict=True)) == pytest.approx(once, rel=1e-2)
    pooled = fit_temperature([torch.cat([small[0], large[0]])], [torch.cat([small[1], large[1]])])
    assert pooled > 1.1 * once


@pytest.mark.parametrize("n", [10, 1000])
def test_where_all_is_right_so_many_samples_allow_so_much_confidence(n):
    y = torch.arange(n) % 2
    logits = 3 * F.one_hot(y, 2).float()
    temperature = fit_temperature([logits], [y])
    sure = float((logits / temperature).softmax(dim=1).amax())
    assert sure == pytest.approx(1 - 0.5 / (n + 1), abs=1e-4)


def test_the_temperature_stays_within_its_bounds():
    y = torch.zeros(50, dtype=torch.int64)
    wrong = 30 * F.one_hot(1 - y, 2).float()
    assert TEMPERATURE_RANGE[0] <= fit_temperature([wrong], [y]) <= TEMPERATURE_RANGE[1]


def slow_error(confidence, hits):
    total = 0.0
    for i in range(15):
        own = (confidence > i / 15) & (confidence <= (i + 1) / 15)
        if own.any():
            total += own.mean() * abs(hits[own].mean() - confidence[own].mean())
    return total


def test_the_calibration_error_is_the_formula():
    generator = np.random.default_rng(0)
    confidence = generator.uniform(0.2, 1, 500)
    hits = generator.uniform(size=500) < confidence**2
    assert calibration_error(confidence, hits) == pytest.approx(slow_error(confidence, hits))


def test_who_is_always_sure_and_right_has_no_error():
    assert calibration_error(np.ones(7), np.ones(7, bool)) == 0
    assert calibration_error(np.ones(7), np.zeros(7, bool)) == 1


def test_reliability_has_every_sample_once():
    generator = np.random.default_rng(1)
    confidence = generator.uniform(0.1, 1, 300)
    hits = generator.uniform(size=300) < 0.5
    bins = reliability_bins(confidence, hits)
    assert sum(count for _, _, count in bins) == 300
    gap = sum(count * abs(right - sure) for sure, right, count in bins) / 300
    assert gap == pytest.approx(calibration_error(confidence, hits))


def test_coverage_leaves_the_least_sure_out():
    confidence = np.arange(10) / 10
    hits = np.array([False] + 9 * [True])
    assert selective_accuracy(confidence, hits) == 1.0
    assert selective_accuracy(confidence[::-1], hits) == pytest.approx(8 / 9)


def test_among_equals_the_order_is_nothing():
    hits = np.array([True] * 5 + [False] * 5)
    assert selective_accuracy(np.ones(10), hits) == pytest.approx(0.5)
    assert selective_accuracy(np.ones(10), hits[::-1]) == pytest.approx(0.5)


def test_quantiles_weigh_domains_alike():
    low, high = np.zeros(1000), np.ones(10)
    result = balanced_quantiles([low, high])
    assert result[40] == 0
    assert result[160] == 1
    assert list(result) == sorted(result)


def test_percentiles_are_the_inverse_of_quantiles():
    values = np.random.default_rng(0).normal(size=5000)
    known = balanced_quantiles([values])
    for share in (1, 25, 50, 90):
        assert percentile_ranks(np.array([np.percentile(values, share)]), known) == pytest.approx(
            share, abs=0.5
        )
    assert percentile_ranks(np.array([-99.0, 99.0]), known).tolist() == [0, 100]


def test_the_percentile_of_what_is_everywhere_is_in_the_middle():
    assert percentile_ranks(np.array([3.0]), [3.0] * 11).tolist() == [50.0]


def test_a_bin_includes_its_upper_end_and_not_its_lower():
    # 0.2 is the upper end of the third of fifteen bins, 0.4 the lower end of the seventh.
    confidence, hits = np.array([0.2, 0.15]), np.array([False, True])
    assert calibration_error(confidence, hits) == pytest.approx(abs(1 - 0.35) / 2)
    confidence, hits = np.array([0.4, 0.45]), np.array([False, True])
    assert calibration_error(confidence, hits) == pytest.approx((0.4 + 0.55) / 2)
    assert len(reliability_bins(confidence, hits)) == 2


def test_the_first_and_the_last_bin_include_their_ends():
    confidence, hits = np.array([0.0, 0.05, 1.0, 0.95]), np.array([True, True, True, False])
    assert [count for *_, count in reliability_bins(confidence, hits)] == [2, 2]


def test_neighbours_of_the_first_and_the_last_bin_are_apart():
    confidence = np.array([0.05, 0.1, 0.9, 0.95])
    counts = [count for *_, count in reliability_bins(confidence, np.ones(4, bool))]
    assert counts == [1, 1, 1, 1]


def test_a_sample_is_at_the_middle_of_its_share_of_the_weight():
    result = balanced_quantiles([np.array([30.0, 10.0, 40.0, 20.0])])
    assert len(result) == 201
    # The shares are quarters; in percent, their middles are at 12.5, 37.5, 62.5 and 87.5.
    assert [result[2 * at] for at in (0, 25, 50, 100)] == [10.0, 15.0, 25.0, 40.0]
    assert [result[at] for at in (25, 75, 125, 175)] == [10.0, 20.0, 30.0, 40.0]
    # One sample of a domain has as much weight as two of another.
    result = balanced_quantiles([np.array([0.0]), np.array([1.0, 2.0])])
    assert [result[at] for at in (50, 125, 175)] == [0.0, 1.0, 2.0]


def test_the_rank_of_a_value_that_two_quantiles_share_is_between_them():
    assert percentile_ranks(np.array([1.0, 0.0, 2.0]), [0, 1, 1, 2]).tolist() == [50.0, 0.0, 100.0]
