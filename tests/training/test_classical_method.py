"""Classical methods: what they store predicts what scikit-learn predicts, with all settings."""

from dataclasses import replace
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

from afield import registry
from afield.errors import SpecError
from afield.hyperparameters import build, defaults, extremes, ranges
from afield.networks.backbone import network
from afield.training.classical_method import MAX_TEXT_COLUMNS, TrainingMatrix, rounded_down
from afield.training.learner import Task
from afield.training.optimizers import optimizer_factory

# Rows that need a package which is not required are tested where it is installed.
OPTIONAL = [name for name in ("lightgbm", "xgboost") if find_spec(name) is None]
NAMES = [name for name in registry.names("classical_methods") if name not in OPTIONAL]
# Fewer trees, and settings that matter on few samples.
QUICK = {
    "lightgbm": {"rounds": 5},
    "xgboost": {"rounds": 5},
    "extra_trees": {"trees": 20},
    "boosted_trees": {"rounds": 5, "leaves": 6},
}
SETTINGS = [(name, each) for name in NAMES for each in ranges(registry.find("methods", name))]


def blobs(classes=4, missing=(2,), kind="numbers", count=240):
    """Samples of all classes but the missing ones, in columns of different sizes."""
    generator = np.random.default_rng(0)
    present = [label for label in range(classes) if label not in missing]
    y = generator.choice(present, count)
    x = generator.normal(size=(count, 6)) + 1.2 * generator.normal(size=(classes, 6))[y]
    x = (x * [1, 3, 1, 0.2, 1, 1] + [0, 5, 0, 0, 0, 0]).astype(np.float32)
    return TrainingMatrix(x, y.astype(np.int64), classes, kind, seed=7)


def texts(count=60):
    """Sparse rows with more columns than methods that are not sparse can take."""
    generator = np.random.default_rng(1)
    y = generator.integers(0, 2, count)
    x = (generator.random((count, MAX_TEXT_COLUMNS + 500)) < 0.02).astype(np.float32)
    x[:, 700] = y
    return TrainingMatrix(csr_matrix(x), y, 2, "texts", seed=7), x


def fitted(name, matrix, **settings):
    """The network of a fitted classical method."""
    kind = registry.find("methods", name)
    method = build(kind, {**QUICK.get(name, {}), **settings})
    width = matrix.x.shape[1]
    classes = tuple(f"class {label}" for label in range(matrix.classes))
    task = Task(
        sources=("one",),
        classes=classes,
        steps=1,
        network=lambda outputs: network("linear", (width,), outputs),
        optimizer=optimizer_factory("", lr=0.1, weight_decay=0.0),
    )
    model = method.setup(network("linear", (width,), matrix.classes), task).model
    model.head.load_state_dict(method.fit(matrix))
    return method, model.eval()


def probabilities(model, x):
    with torch.inference_mode():
        return model(torch.from_numpy(np.asarray(x))).softmax(dim=1).double().numpy()


def theirs(method, matrix, x):
    """The classifier of scikit-learn, and what it predicts."""
    classifier = method.classifier(matrix)
    if method.name == "xgboost":
        known, y = np.unique(matrix.y, return_inverse=True)
        fitted = classifier.fit(matrix.x, y)
        return SimpleNamespace(predict=lambda x: known[fitted.predict(x)], classes_=known), x
    if method.name != "logistic":
        return classifier.fit(matrix.x, matrix.y), x
    mean, std = matrix.moments()
    return classifier.fit((matrix.x - mean) / std, matrix.y), (x - mean) / std


@pytest.mark.parametrize("missing", [(2,), (0, 3)])
@pytest.mark.parametrize("name", NAMES)
def test_the_arrays_predict_what_scikit_learn_predicts(name, missing):
    matrix = blobs(missing=missing)
    method, model = fitted(name, matrix)
    x = np.random.default_rng(3).normal(size=(300, 6), scale=2).astype(np.float32)
    classifier, inputs = theirs(method, matrix, x)
    ours = probabilities(model, x)
    agree = (ours.argmax(axis=1) == classifier.predict(inputs)).mean()
    # Points with equal votes and distances may be counted in another order.
    assert agree >= (0.98 if name in ("nearest", "svm") else 1.0)
    if name in ("logistic", "boosted_trees", "lightgbm"):
        np.testing.assert_allclose(
            ours[:, classifier.classes_], classifier.predict_proba(inputs), atol=2e-5
        )
    if name == "extra_trees":
        shares = classifier.predict_proba(inputs) * 20
        expected = (shares + 1 / 4) / (20 + 1)
        np.testing.assert_allclose(ours[:, classifier.classes_], expected, atol=1e-6)
    assert ours[:, list(missing)].max() < 0.06


@pytest.mark.parametrize("name", NAMES)
def test_texts_are_read_by_the_n_grams_that_tell_classes_apart(name):
    matrix, dense = texts()
    method, model = fitted(name, matrix)
    # The n-gram that decides is one of many for the distance.
    least = 0.6 if name == "nearest" else 0.95
    assert (probabilities(model, dense).argmax(axis=1) == matrix.y).mean() > least
    if method.head is not None:
        assert len(model.head.columns) == MAX_TEXT_COLUMNS
        assert 700 in model.head.columns


@pytest.mark.parametrize("name", NAMES)
def test_a_fit_repeats_itself_and_is_the_same_with_two_threads(name):
    matrix = blobs()
    first = fitted(name, matrix)[1].state_dict()
    # Threads that wait for each other are slow where others compute as well.
    others = (
        [matrix] if "boost" in name or name == "lightgbm" else [matrix, replace(matrix, threads=2)]
    )
    for other in others:
        again = fitted(name, other)[1].state_dict()
        assert all(torch.equal(first[key], again[key]) for key in first)


@pytest.mark.parametrize(("name", "setting"), SETTINGS)
def test_every_setting_matters(name, setting):
    matrix, low_high = blobs(), extremes(registry.find("methods", name), setting)
    low_high = (3, 6) if setting in ("trees", "rounds") else low_high
    states = [fitted(name, matrix, **{setting: end})[1].state_dict() for end in low_high]
    same = [
        states[0][key].shape == states[1][key].shape and torch.equal(states[0][key], states[1][key])
        for key in states[0]
    ]
    assert not all(same)


def test_settings_that_cannot_be_are_refused():
    for name, setting in SETTINGS:
        with pytest.raises(SpecError, match=f"{setting}"):
            build(registry.find("methods", name), {setting: -1})
    assert all(defaults(registry.find("methods", name)) for name in NAMES)


def test_sources_of_one_class_are_refused_in_one_line():
    matrix = blobs(missing=(1, 2, 3))
    with pytest.raises(SpecError, match="svm: the sources have samples of one class only"):
        fitted("svm", matrix)


def test_a_threshold_in_single_precision_sends_no_sample_the_other_way():
    values = np.random.default_rng(0).normal(size=1000)
    x = values.astype(np.float32)
    x = np.concatenate([x, np.nextafter(x, np.float32(9)), np.nextafter(x, np.float32(-9))])
    thresholds = np.tile(values, 3)
    assert ((x <= thresholds) == (x <= rounded_down(thresholds))).all()
    assert np.isfinite(rounded_down(np.array([np.inf, -np.inf]))).all()


def test_the_name_of_a_classical_method_is_found_among_methods_but_not_listed_there():
    assert not set(NAMES) & set(registry.names("methods"))
    for name in NAMES:
        kind = registry.find("methods", name)
        assert kind is registry.find("classical_methods", name)
        assert kind().name == name
        assert registry.is_classical(name)
        assert registry.digest("methods", name) == registry.digest("classical_methods", name)
    assert not registry.is_classical("erm")
