"""A model in use answers as it did in evaluation, and says how surely and how far off."""

import numpy as np
import pytest
import torch

from afield.data.lookup import find_dataset
from afield.deployment.exporting import export
from afield.deployment.fitting import fit
from afield.deployment.model import load
from afield.errors import DataError, SpecError
from afield.networks.backbone import Classifier


@pytest.fixture(scope="module")
def model(spiral_model):
    return load(spiral_model)


@pytest.fixture(scope="module")
def x():
    return find_dataset("spirals").load()["turn20"].x


def test_the_module_is_a_plain_network_in_evaluation_mode(model):
    assert type(model.module) is Classifier
    assert not model.module.training
    assert model.classes == ("first", "second")


def test_probabilities_are_those_of_the_scaled_inputs_at_the_models_temperature(model, x):
    inputs = model.about.inputs
    scaled = (x - torch.tensor(inputs.mean)) / torch.tensor(inputs.std)
    with torch.no_grad():
        expected = (model.module(scaled) / model.temperature).softmax(dim=1)
    assert model.temperature == model.about.calibration.temperature != 1.0
    np.testing.assert_allclose(model.predict_proba(x), expected.numpy(), atol=1e-6)


def test_classes_are_named(model, x):
    best = model.predict_proba(x).argmax(axis=1)
    assert model.predict(x).tolist() == [model.classes[i] for i in best]


@pytest.mark.parametrize("batch", [1, 7, 1000])
def test_the_batch_makes_no_difference(model, x, batch):
    result = [(p.confidence, p.distance, p.percentile) for p in model.predictions(x, batch=batch)]
    usual = [(p.confidence, p.distance, p.percentile) for p in model.predictions(x)]
    np.testing.assert_allclose(result, usual, rtol=1e-3, atol=0.01)


def test_arrays_tensors_and_files_are_alike(model, x, tmp_path):
    np.save(tmp_path / "x.npy", x.numpy())
    np.savez(tmp_path / "x.npz", X=x.numpy())
    expected = model.predict_proba(x)
    for given in (x.numpy(), tmp_path / "x.npy", str(tmp_path / "x.npz"), [tmp_path / "x.npy"]):
        np.testing.assert_array_equal(model.predict_proba(given), expected)
    assert model.predict_proba(tmp_path).shape == (2 * len(x), 2)


def test_what_is_elsewhere_is_far(model, x):
    near, far = (list(model.predictions(each)) for each in (x, x + 20))
    assert np.median([p.distance for p in near]) < 2 < min(p.distance for p in far)
    assert {p.percentile for p in far} == {100.0}
    assert 20 < np.mean([p.percentile for p in near]) < 80


def test_a_sample_for_which_the_network_overflows_has_an_error_and_no_class(model, x):
    given = torch.cat([x[:1], torch.full((1, 2), 3e38), x[1:2]])
    result = list(model.predictions(given))
    assert "outputs are not finite" in result[1].error
    assert (result[1].label, result[1].confidence) == ("", None)
    assert [p.label for p in result[::2]] == model.predict(x[:2]).tolist()
    with pytest.raises(DataError, match=r"\[1\]: .*outputs are not finite"):
        model.predict_proba(given)


def test_below_the_threshold_lies_as_great_a_share_of_what_was_held_out(model):
    confidences = np.array(model.about.calibration.confidences)
    for share in (0.0, 0.1, 0.5, 1.0):
        assert (confidences < model.threshold(share)).mean() == pytest.approx(share, abs=0.01)


def test_a_broken_file_is_an_error_where_an_array_is_wanted_and_else_a_row(model, tmp_path):
    (tmp_path / "bad.npy").write_text("text")
    with pytest.raises(DataError, match=r"bad\.npy: not an \.npy file of plain arrays"):
        model.predict(tmp_path / "bad.npy")
    (row,) = model.predictions(tmp_path / "bad.npy")
    assert row.label == ""
    assert row.confidence is None
    assert row.error


def test_no_files_are_no_predictions(model, tmp_path):
    assert model.predict_proba(tmp_path).shape == (0, 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model, x: model.threshold(-0.1), "a share of the predictions"),
        (lambda model, x: model.threshold(1.1), "a share of the predictions"),
        (lambda model, x: model.threshold(float("nan")), "a share of the predictions"),
        (lambda model, x: model.predict(3), "give paths of files or folders, or one array"),
        (lambda model, x: model.predict([1, 2]), "give paths of files or folders, or one array"),
        (lambda model, x: model.predict(None), "give paths of files or folders, or one array"),
        (lambda model, x: model.predict(x, batch=0), "batch=0"),
        (lambda model, x: model.predict(x, domain="turn0"), "cannot use a domain label"),
        (lambda model, x: model.adapted("tent"), "tent adapts BatchNorm layers"),
        (lambda model, x: model.adapted("t3a", {"keep": 5}), r"write t3a\.NAME"),
        (
            lambda model, x: export(model.adapted("t3a"), "torch", "model.pt2"),
            "an adapted model predicts from batches",
        ),
    ],
)
def test_what_a_model_cannot_do_is_refused(call, message, model, x, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError, match=message):
        call(model, x)


@pytest.fixture(scope="module", params=["dmg", "multi_head"])
def domain_model(tmp_path_factory, request):
    """A model that can use the domain label, without an estimate for unseen domains."""
    place = tmp_path_factory.mktemp("domain_model")
    settings = {"steps": 20, "every": 20}
    options = {"store": place / "runs", "settings": settings, "estimate": False}
    return fit("spirals", request.param, place / "model", **options)


def test_a_known_domain_is_used_where_it_can_be(domain_model, x):
    assert domain_model.domains == ("turn0", "turn10", "turn20", "turn30")
    prepared = domain_model.about.inputs.prepare(x)
    with torch.no_grad():
        expected = domain_model.module(prepared, 2).softmax(dim=1).numpy()
    result = domain_model.predict_proba(x, domain="turn20")
    np.testing.assert_allclose(result, expected, atol=1e-6)
    assert abs(result - domain_model.predict_proba(x)).max() > 1e-4


def test_an_unknown_domain_is_reported_with_those_that_are_known(domain_model, x):
    with pytest.raises(SpecError, match="did you mean 'turn20'"):
        domain_model.predict(x, domain="turn2")


def test_without_an_estimate_nothing_is_claimed(domain_model, x):
    answer = next(domain_model.predictions(x))
    assert domain_model.temperature == 1.0
    assert answer.distance is not None
    assert answer.percentile is None
    with pytest.raises(SpecError, match="without --no-estimate"):
        domain_model.threshold(0.1)


def test_random_numbers_of_the_caller_stay_as_they_are(spiral_model):
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    load(spiral_model)
    assert torch.equal(torch.rand(3), expected)


def test_an_adapted_model_learns_from_the_samples_and_starts_afresh_each_time(model, x):
    adapted = model.adapted("t3a", {"t3a.keep": 5})
    first = adapted.predict_proba(x)
    assert not np.array_equal(first, model.predict_proba(x))
    np.testing.assert_array_equal(adapted.predict_proba(x), first)
    # A single sample has no others to learn from, so the others did matter above.
    alone = np.concatenate([adapted.predict_proba(x[i : i + 1]) for i in range(20)])
    assert not np.allclose(alone, first[:20])
    assert adapted.temperature == 1.0
    with pytest.raises(SpecError, match="cannot abstain"):
        adapted.threshold(0.1)
