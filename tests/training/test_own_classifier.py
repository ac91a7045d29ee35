"""Classifiers of scikit-learn as rows: they bench, and are not stored."""

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression, Ridge, RidgeClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC

import afield
from afield import registry
from afield.errors import SpecError
from afield.runs.store import Store
from afield.training.own_classifier import classifier_name, is_classifier

FOREST = RandomForestClassifier(7)


def test_a_classifier_is_a_row_beside_methods(tmp_path):
    methods = ["logistic", FOREST, LinearSVC, RidgeClassifier(alpha=2), SVC()]
    words = {"targets": "turn0", "trials": 1, "store": tmp_path, "settings": {"lr": 0.5}}
    records = afield.bench("spirals", methods, **words)
    names = {record.run.method for record in Store(tmp_path)}
    assert {"logistic", classifier_name(FOREST), "LinearSVC", "SVC"} < names
    assert len(names) == 5
    for record in Store(tmp_path):
        (checkpoint,) = record.checkpoints
        assert record.run.role == "classical"
        assert "lr" not in record.run.given
        assert checkpoint.scores["turn0"].main.accuracy > 0.5
    assert records[0].run.method == "logistic"
    again = afield.bench("spirals", methods, **words)
    assert [record.run.key for record in again] == [record.run.key for record in records]


def test_its_predictions_are_those_of_the_classifier_itself(tmp_path):
    afield.bench("spirals", [FOREST], targets="turn0", trials=1, store=tmp_path)
    (record,) = Store(tmp_path)
    from afield.data.lookup import find_dataset
    from afield.runs.run_data import known_splits

    domains = find_dataset("spirals").load()
    splits = known_splits(record.run, domains)
    train = [
        (domains[n].x[splits[n].main], domains[n].y[splits[n].main]) for n in record.run.sources
    ]
    x, y = (np.concatenate([part.numpy() for part in parts]) for parts in zip(*train, strict=True))
    mean, std = x.mean(axis=0), x.std(axis=0)
    forest = RandomForestClassifier(7, random_state=record.run.seed % 2**32)
    forest.fit(((x - mean) / std).astype(np.float32), y)
    rows = splits["turn0"].main
    target = ((domains["turn0"].x[rows].numpy() - mean) / std).astype(np.float32)
    accuracy = (forest.predict(target) == domains["turn0"].y[rows].numpy()).mean()
    measured = record.checkpoints[0].scores["turn0"].main.accuracy
    assert measured == pytest.approx(accuracy, abs=0.02)


def test_names_tell_settings_apart_and_do_not_depend_on_the_session():
    assert classifier_name(SVC()) == "SVC"
    other = make_pipeline(StandardScaler(), LogisticRegression(C=0.1))
    assert classifier_name(other) != classifier_name(make_pipeline(StandardScaler(), SVC()))
    assert classifier_name(SVC(C=2)) != classifier_name(SVC(C=3))


def test_what_is_no_classifier_is_refused(tmp_path):
    assert is_classifier(SVC)
    assert not is_classifier(Ridge())
    assert not is_classifier(3)
    with pytest.raises(SpecError, match="Ridge is neither a Method nor a classifier"):
        afield.bench("spirals", [Ridge()], store=tmp_path)


def test_fit_refuses_a_classifier_in_one_line(tmp_path):
    with pytest.raises(SpecError, match="could only be stored as a pickle") as caught:
        afield.fit("spirals", SVC(), tmp_path / "model")
    assert "\n" not in str(caught.value)
    afield.bench("spirals", [SVC(C=7)], targets="turn0", trials=1, store=tmp_path / "runs")
    name = classifier_name(SVC(C=7))
    assert registry.is_classical(name)
    with pytest.raises(SpecError, match=f"{name}: a classifier that is passed"):
        afield.fit("spirals", name, tmp_path / "model", store=tmp_path / "runs")
