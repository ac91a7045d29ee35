"""Estimators of the accuracy without labels: their formulas, their errors, and their limits."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from afield import registry
from afield.data.lookup import find_dataset
from afield.deployment.estimate_page import next_steps, render_estimate
from afield.deployment.estimator import (
    EstimatorResult,
    choose_estimator,
    common_temperature,
    measure_estimators,
    on_line,
    share_above,
)
from afield.deployment.held_out import DomainOutputs
from afield.deployment.model import load
from afield.deployment.new_domain import estimate
from afield.errors import SpecError

NAMES = registry.names("estimators")


def domain(noise, name="a", count=400, *, agreement=True):
    """Three classes whose logits are noisy; the model knows how noisy they are."""
    generator = torch.Generator().manual_seed(round(100 * noise))
    labels = torch.randint(3, (count,), generator=generator)
    signal = torch.nn.functional.one_hot(labels, 3).float()
    logits = (signal + noise * torch.randn(count, 3, generator=generator)) / noise**2
    scores = {"distance": noise + 0.1 * torch.rand(count, generator=generator)}
    if agreement:
        right = logits.argmax(1) == labels
        scores["agreement"] = 0.4 + 0.6 * right.float()
    return DomainOutputs(name, logits, labels, scores)


HELD_OUT = [domain(noise, f"d{noise}") for noise in (0.4, 0.6, 0.8, 1.0, 1.2)]


def unlabelled(outputs):
    return replace(outputs, labels=torch.empty(0, dtype=torch.long))


@pytest.mark.parametrize("name", NAMES)
def test_an_estimate_is_a_share_that_needs_no_labels_and_repeats(name):
    estimator, new = registry.find("estimators", name)(), domain(0.7)
    value = estimator.estimate(HELD_OUT, unlabelled(new))
    assert 0 <= value <= 1
    assert value == estimator.estimate(HELD_OUT, new)
    # Held-out domains have no order.
    assert value == pytest.approx(estimator.estimate(HELD_OUT[::-1], unlabelled(new)))


@pytest.mark.parametrize("name", [name for name in NAMES if name != "held_out_mean"])
def test_a_harder_domain_gets_a_lower_estimate_near_the_truth(name):
    estimator = registry.find("estimators", name)()
    easy, hard = domain(0.5), domain(1.1)
    values = [estimator.estimate(HELD_OUT, unlabelled(each)) for each in (easy, hard)]
    assert values[0] > values[1] + 0.1
    assert values == pytest.approx([easy.accuracy, hard.accuracy], abs=0.12)


def test_confidences_are_those_of_held_out_temperature_and_differences_move_the_mean():
    new = domain(0.7)
    temperature = common_temperature(HELD_OUT)
    mean = float((new.logits.double() / temperature).softmax(1).amax(1).mean())
    find = registry.find
    assert find("estimators", "mean_confidence")().estimate(HELD_OUT, new) == pytest.approx(mean)
    before = np.mean([float(each.confidences(temperature).mean()) for each in HELD_OUT])
    accuracy = np.mean([each.accuracy for each in HELD_OUT])
    moved = find("estimators", "difference_of_confidences")().estimate(HELD_OUT, new)
    assert moved == pytest.approx(accuracy + mean - before)
    assert find("estimators", "held_out_mean")().estimate(HELD_OUT, new) == pytest.approx(accuracy)


def test_the_threshold_leaves_as_many_held_out_samples_above_as_are_right():
    scores, hits = torch.arange(10).double(), torch.tensor([0.0] * 4 + [1.0] * 6)
    assert share_above([scores], [hits], scores) == pytest.approx(0.6, abs=0.11)
    assert share_above([scores], [hits], torch.full((3,), 99.0)) == 1.0
    assert share_above([scores], [hits], torch.full((3,), -1.0)) == 0.0


def test_two_points_have_no_slope_and_more_points_have_nearly_that_of_least_squares():
    assert on_line([0.0, 1.0], [0.2, 0.8], 5.0) == pytest.approx(0.5)
    x, y = np.linspace(0, 1, 50), 0.2 + 0.5 * np.linspace(0, 1, 50)
    assert on_line(list(x), list(y), 1.0) == pytest.approx(0.45 + 0.25 * 48 / 49)
    assert on_line([1.0, 1.0, 1.0], [0.1, 0.2, 0.3], 2.0) == pytest.approx(0.2)


def test_errors_are_those_on_domains_that_are_taken_away():
    results = measure_estimators(HELD_OUT, unlabelled(domain(0.7)))
    assert {result.name for result in results} == set(NAMES)
    means = [result.mean_error for result in results[1:]]
    assert means == sorted(means)
    (constant,) = [result for result in results if result.name == "held_out_mean"]
    others = np.mean([each.accuracy for each in HELD_OUT[1:]])
    assert constant.errors[0] == pytest.approx(others - HELD_OUT[0].accuracy)
    assert means[0] < constant.mean_error


def test_another_estimator_is_chosen_if_it_is_better_beyond_chance():
    default, even = (0.06, -0.05, 0.07, 0.05), (0.01, 0.0, -0.01, 0.01)
    assert choose_estimator({"consensus": default, "mano": even}) == "mano"
    # Much better on one domain of four is chance.
    lucky = (0.06, -0.05, 0.06, 0.0)
    assert choose_estimator({"consensus": default, "mano": lucky}) == "consensus"
    assert choose_estimator({"consensus": default, "mano": default}) == "consensus"


def test_only_ensembles_have_an_agreement():
    single = [domain(noise, agreement=False) for noise in (0.4, 0.6, 0.8)]
    names = {result.name for result in measure_estimators(single, single[0])}
    assert names == set(NAMES) - {"agreement"}


def test_the_interval_is_that_of_students_t():
    result = EstimatorResult("x", 0.6, (0.03, -0.05, 0.02, 0.04))
    squares = np.mean(np.square(result.errors)) * 1.25 + 0.6 * 0.4 / 500
    half = stats.t.ppf(0.9, 3) * np.sqrt(squares)
    assert result.interval(500) == pytest.approx((0.6 - half, 0.6 + half))
    # The true accuracies have errors of their own, which are not those of the estimator.
    noisy = replace(result, noise=0.001)
    squares -= 0.001 * 1.25
    half = stats.t.ppf(0.9, 3) * np.sqrt(squares)
    assert noisy.interval(500) == pytest.approx((0.6 - half, 0.6 + half))
    assert replace(result, noise=1.0).interval(10**9) == pytest.approx((0.6, 0.6), abs=1e-4)
    assert (result.mean_error, result.worst_error) == pytest.approx((0.035, 0.05))


@pytest.fixture
def model(spiral_model):
    return load(spiral_model)


@pytest.fixture(scope="module")
def samples():
    return find_dataset("spirals").load()["turn20"].x.numpy()


def test_a_model_estimates_its_accuracy_on_samples_without_labels(model, samples, tmp_path):
    result = model.estimate(samples)
    assert not result.refusal
    assert result.low <= result.results[0].estimate <= result.high
    assert "held-out domains this estimate" in result.headline
    assert len(result.rows) == result.samples == len(samples)
    assert sum(result.shares.values()) == pytest.approx(1)
    assert result.strangest[0][1] == result.rows["strangeness"].max()
    assert json.loads(json.dumps(result.to_dict()))["headline"] == result.headline
    page = render_estimate(result, "new", "model")
    assert all(name in page for name in ("mean_confidence", "turn20", "Strangest"))
    np.save(tmp_path / "new.npy", samples)
    assert model.estimate(tmp_path / "new.npy").results == result.results


def test_there_is_no_number_with_few_domains_or_far_away(model, samples):
    far = estimate(model, samples + 50)
    assert "farther from the training data" in far.headline
    assert next_steps(far, "model")[1].command == "afield evaluate model labels.csv"
    model.held_out = model.held_out[:2]
    few = estimate(model, samples)
    assert "too few" in few.headline
    assert few.results == ()


def test_a_folder_without_outputs_says_what_it_lacks(model, samples):
    model.held_out = []
    with pytest.raises(SpecError, match=r"held_out\.safetensors"):
        estimate(model, samples)
