"""Nothing of the target reaches training or selection: change it, and the model stays the same."""

import numpy as np
import pandas as pd
import pytest

from afield.runs.run_files import read_run_inputs, read_run_weights
from afield.runs.runner import execute
from afield.runs.store import Store
from afield.studies.planning import plan_run
from tests.texts import reviews, write_reviews

HOSPITALS = ("north", "south", "target")


@pytest.fixture
def patients():
    """Patients of three hospitals, with missing values and categories; the sources stay."""
    generator = np.random.default_rng(0)
    size = 90
    age = generator.normal(60, 10, size).round(1)
    frame = pd.DataFrame(
        {
            "age": age,
            "pressure": generator.normal(130, 15, size).round(0),
            "pain": generator.choice(["none", "typical"], size),
            "seen": pd.date_range("2024-01-01", periods=size).strftime("%Y-%m-%d"),
            "label": np.where(age + generator.normal(0, 5, size) > 60, "sick", "healthy"),
            "domain": np.repeat(HOSPITALS, size // 3),
        }
    ).astype({"age": object, "pressure": object})
    frame.loc[3, "pressure"] = None
    return frame


def trained(frame, folder, **settings):
    """Weights and source scores of a run that has not seen the target."""
    folder.mkdir()
    frame.to_csv(folder / "patients.csv", index=False)
    store = Store(folder / "runs")
    run = plan_run(
        folder / "patients.csv", "erm", target="target", settings={"steps": 20, **settings}
    )
    record = execute(run, store)
    weights = {name: value.numpy() for name, value in read_run_weights(store.folder(run)).items()}
    scores = [[c.scores[name].probe for name in HOSPITALS[:2]] for c in record.checkpoints]
    return weights, scores


def change(column, value, rows=slice(70, 71)):
    def changed(frame):
        frame = frame.astype({column: object}).copy()
        frame.loc[frame.index[rows], column] = value
        return frame

    return changed


CHANGES = {
    "a number that is not one": change("pressure", "n/d"),
    "a column without any number": change("pressure", "unknown", slice(60, 90)),
    "a missing number": change("age", None),
    "a column that is missing": change("age", None, slice(60, 90)),
    "another value": change("age", 1e4),
    "a new category": change("pain", "burning"),
    "a number among categories": change("pain", "7"),
    "a date that is not one": change("seen", "soon"),
    "labels": change("label", "healthy", slice(60, 80)),
    "fewer rows": lambda frame: frame.drop(range(75, 90)),
}


@pytest.mark.parametrize("changed", CHANGES.values(), ids=CHANGES)
def test_a_change_of_the_target_changes_no_weight_and_no_score_of_a_source(
    patients, tmp_path, changed
):
    before = trained(patients, tmp_path / "before")
    after = trained(changed(patients), tmp_path / "after")
    assert before[0].keys() == after[0].keys()
    for name, value in before[0].items():
        np.testing.assert_array_equal(value, after[0][name])
    assert before[1] == after[1]


def test_the_types_of_earlier_versions_depend_on_the_target(patients, tmp_path):
    changed = CHANGES["a number that is not one"](patients)
    before = trained(patients, tmp_path / "before", columns="table")
    after = trained(changed, tmp_path / "after", columns="table")
    assert any(value.shape != after[0][name].shape for name, value in before[0].items())


def trained_on_texts(frame, folder):
    """Weights, vocabulary and source scores of a bag of words."""
    folder.mkdir()
    store = Store(folder / "runs")
    run = plan_run(write_reviews(folder, frame), "erm", target="hotels", settings={"steps": 10})
    record = execute(run, store)
    assert run.backbone == "bag:"
    weights = {name: value.numpy() for name, value in read_run_weights(store.folder(run)).items()}
    scores = [[c.scores[name].probe for name in ("films", "food")] for c in record.checkpoints]
    inputs = {k: v for k, v in read_run_inputs(store.folder(run)).items() if k != "run"}
    return weights, inputs, scores


TEXT_CHANGES = {
    "other words": change("text", "entirely different vocabulary", slice(50, 72)),
    "a longer text": change("text", "very long " * 400, slice(50, 51)),
    "another script": change("text", "这家酒店很好", slice(48, 60)),
    "labels": change("label", "good", slice(48, 60)),
    "fewer texts": lambda frame: frame.drop(range(60, 72)),
}


@pytest.mark.parametrize("changed", TEXT_CHANGES.values(), ids=TEXT_CHANGES)
def test_a_change_of_the_texts_of_the_target_changes_nothing_that_is_trained(tmp_path, changed):
    weights, inputs, scores = trained_on_texts(reviews(), tmp_path / "before")
    others = trained_on_texts(changed(reviews()), tmp_path / "after")
    for name, value in weights.items():
        np.testing.assert_array_equal(value, others[0][name])
    assert inputs == others[1]
    assert scores == others[2]


def test_a_change_of_the_texts_of_a_source_changes_the_vocabulary(tmp_path):
    before = trained_on_texts(reviews(), tmp_path / "before")
    changed = change("text", "entirely different vocabulary", slice(0, 12))(reviews())
    assert trained_on_texts(changed, tmp_path / "after")[1] != before[1]
