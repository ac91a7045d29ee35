"""Runs of classical methods: one checkpoint, and keys that no setting of training changes."""

import logging

import pytest
import torch

from afield.data.lookup import find_dataset
from afield.errors import SpecError
from afield.runs.row import Row, common_settings
from afield.runs.run_files import read_run_weights
from afield.runs.runner import execute
from afield.runs.store import Store
from afield.studies.benchmark import make_benchmark
from afield.studies.planning import adapted_runs
from afield.studies.settings import resolve_run

QUICK = {"targets": "turn0", "trials": 1}
TRAINING = {"lr": 0.5, "steps": 7, "batch": 3, "optimizer": "sgd", "lr_schedule": "cosine"}
TRAINING |= {"backbone": "small:mlp", "weight_decay": 0.1, "clip_norm": 1.0, "balance": True}


def planned(methods="logistic", **words):
    return make_benchmark("spirals", methods, **{**QUICK, **words}).runs()


def test_no_setting_of_training_changes_the_key_or_the_label():
    (plain,) = planned()
    (other,) = planned(settings=TRAINING)
    assert other.key == plain.key
    assert other == plain
    assert list(plain.given) == ["targets"]
    (own,) = planned(settings={"logistic.c": 0.5})
    assert own.key != plain.key
    assert own.given["logistic.c"] == 0.5


def test_settings_of_training_label_the_other_rows_alone():
    runs = planned(["erm", "logistic"], settings={"lr": 0.5, "steps": 7})
    common = common_settings(runs)
    labels = [Row.of(run).without(common).label for run in runs]
    assert labels == ["erm", "logistic"]
    assert Row.of(runs[1]).family == "classical"
    assert not Row.of(runs[1]).is_reference


def test_options_of_training_pass_over_classical_methods_with_one_note(caplog):
    options = {"average": "swa", "ensemble": 3, "adapt": ["t3a"], "steps": 5}
    with caplog.at_level(logging.WARNING):
        runs = planned(["erm", "logistic"], **options)
    assert [run for run in runs if run.method == "logistic"] == planned()
    assert {run.average for run in runs if run.method == "erm"} == {"swa"}
    notes = [record.message for record in caplog.records if "fitted once" in record.message]
    assert notes == [
        "logistic: fitted once, without steps, so --average, --ensemble, --adapt do not change it"
    ]
    assert not adapted_runs(planned(), ["t3a"])


def test_a_start_is_not_fitted_for_classical_methods_alone():
    assert [run.method for run in planned(start="linear_probe")] == ["logistic"]


def test_draws_choose_hyperparameters_and_nothing_else():
    first, second, third = planned("extra_trees", draws=3)
    assert first.params == {"trees": None, "features": None, "leaf": 1}
    assert len({str(run.params) for run in (first, second, third)}) == 3
    assert {run.lr for run in (first, second, third)} == {first.lr}
    assert {run.batch for run in (first, second, third)} == {first.batch}


def test_a_run_has_one_checkpoint_no_snapshot_and_the_same_bytes_again(tmp_path):
    (run,) = planned("extra_trees", settings={"extra_trees.trees": 5})
    stores = [Store(tmp_path / name) for name in ("one", "two")]
    records = [execute(run, store, snapshot_seconds=0) for store in stores]
    assert len(records[0].checkpoints) == 1
    assert records[0].checkpoints == records[1].checkpoints
    assert not list(stores[0].root.rglob("snapshot*"))
    weights = [read_run_weights(store.folder(run)) for store in stores]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert "scikit-learn" in records[0].versions


def test_a_matrix_that_is_too_large_is_refused_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr("afield.training.classical_method.MAX_MATRIX_NUMBERS", 10)
    (run,) = planned()
    with pytest.raises(SpecError, match=r"logistic: \d+ samples of 2 numbers are more than 10 num"):
        execute(run, Store(tmp_path))


def test_texts_are_bags_of_words_and_other_samples_are_flattened():
    spirals = find_dataset("spirals")
    run = resolve_run(spirals, "svm", spirals.domains[1:], settings={"tokens": None})
    assert (run.backbone, run.tokens, run.steps, run.role) == ("linear", 0, 1, "classical")
