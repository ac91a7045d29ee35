"""Prediction sets: quantiles over held-out domains, and the coverage that they reach."""

import numpy as np
import pytest
import torch

from afield.deployment.model import load
from afield.deployment.prediction_sets import (
    PredictionSets,
    check_quantiles,
    conformity,
    select_classes,
    share_below,
)
from afield.errors import SpecError
from afield.training.calibration import QUANTILE_POINTS


def domain(shift, count=4000):
    generator = torch.Generator().manual_seed(round(10 * shift))
    labels = torch.randint(5, (count,), generator=generator)
    logits = torch.randn(count, 5, generator=generator)
    logits[torch.arange(count), labels] += 3 - shift
    return logits.softmax(1), labels


def covered(probabilities, labels, threshold):
    rows = zip(probabilities.tolist(), labels.tolist(), strict=True)
    return np.mean([label in select_classes(row, threshold) for row, label in rows])


DOMAINS = [domain(shift) for shift in (0.0, 0.5, 1.0, 1.5)]
SETS = PredictionSets({str(n): conformity(*each) for n, each in enumerate(DOMAINS)})


@pytest.mark.parametrize("level", [0.85, 0.9, 0.95])
def test_sets_cover_held_out_domains_on_average_and_the_worst_threshold_each_of_them(level):
    pooled, worst = SETS.thresholds(level)
    assert np.mean([covered(*each, pooled) for each in DOMAINS]) == pytest.approx(level, abs=0.01)
    assert min(covered(*each, worst) for each in DOMAINS) == pytest.approx(level, abs=0.01)


def test_the_coverage_of_a_domain_is_that_with_the_threshold_of_the_others():
    for number, each in enumerate(DOMAINS):
        others = {name: q for name, q in SETS.domains.items() if name != str(number)}
        threshold, _ = PredictionSets(others).thresholds(0.9)
        measured = SETS.coverages(0.9)[str(number)]
        assert measured == pytest.approx(covered(*each, threshold), abs=0.01)
    assert SETS.promise == 0.8


@pytest.mark.parametrize("count", [2, 4])
def test_the_expected_coverage_is_that_on_further_domains(count):
    """Domains whose scores are exponential with random scales, of which all shares are known."""
    generator = np.random.default_rng(0)
    steps = -np.log1p(-np.linspace(0, 0.9999, QUANTILE_POINTS)) / 20
    true, said, naive = [], [], []
    for _ in range(300):
        scales = generator.gamma(4.0, size=count + 20)
        tables = {str(n): np.minimum(1, scale * steps) for n, scale in enumerate(scales[:count])}
        sets = PredictionSets(tables)
        threshold, _ = sets.thresholds(0.8)
        true += [share_below(scale * steps, threshold) for scale in scales[count:]]
        said.append(sets.expected(0.8)[0])
        naive += sets.coverages(0.8).values()
    assert np.mean(said) == pytest.approx(np.mean(true), abs=0.02)
    assert np.mean(naive) < np.mean(said) < 0.8


def test_nothing_is_expected_from_one_domain():
    assert np.isnan(PredictionSets({"0": SETS.domains["0"]}).expected(0.9)).all()


def test_a_small_domain_weighs_as_much_as_a_large_one():
    large = {"a": conformity(*domain(0.0)), "b": conformity(*domain(1.5))}
    small = {"a": conformity(*domain(0.0)), "b": conformity(*domain(1.5, 800))}
    first, second = (PredictionSets(each).thresholds(0.9)[0] for each in (large, small))
    assert first == pytest.approx(second, abs=0.02)


def test_a_set_is_never_empty():
    assert select_classes([0.4, 0.6], 0.0) == [1]
    assert select_classes([0.4, 0.6], 1.0) == [1, 0]


@pytest.mark.parametrize("level", [0.0, 1.0, -1.0, 2.0, float("nan")])
def test_a_coverage_is_a_share(level):
    with pytest.raises(SpecError, match="between 0 and 1"):
        SETS.thresholds(level)


def test_shares_below_a_threshold_are_those_of_the_values():
    values = np.sort(np.random.default_rng(0).random(201))
    for threshold in (0.1, 0.5, 0.99):
        assert share_below(values, threshold) == pytest.approx(
            (values <= threshold).mean(), abs=0.01
        )
    assert (share_below(values, -1.0), share_below(values, 2.0)) == (0.0, 1.0)


def test_quantiles_of_a_file_are_checked():
    good = conformity(*DOMAINS[0])
    check_quantiles({"a": good})
    for bad in (good[:5], good[::-1], (*good[:-1], 7.0)):
        with pytest.raises(SpecError, match="shares in rising order"):
            check_quantiles({"a": bad})


def test_a_model_predicts_sets(spiral_model):
    model = load(spiral_model)
    x = np.zeros((3, 2), dtype=np.float32)
    assert model.predict_sets(x, coverage=0.999) == [model.predict_sets(x, coverage=0.999)[0]] * 3
    assert all(
        row[0] == label for row, label in zip(model.predict_sets(x), model.predict(x), strict=True)
    )
    with pytest.raises(SpecError, match="no quantiles"):
        _ = load(spiral_model).adapted("t3a").sets
