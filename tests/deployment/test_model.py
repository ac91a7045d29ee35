"""A model in use answers as it did in evaluation, and says how surely and how far off."""

import csv
import io
import json
import sys

import numpy as np
import pandas as pd
import pytest
import torch

from afield.data.lookup import find_dataset
from afield.deployment.exporting import export
from afield.deployment.fitting import fit
from afield.deployment.model import (
    Columns,
    Prediction,
    check_output_file,
    csv_lines,
    load,
    safe_name,
    write_predictions,
)
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


GOOD = Prediction("a.png", "cup", 0.75, 1.5, 40.0, (0.75, 0.25))
DOUBTFUL = Prediction('b "x", y\n.png', "pot", 0.5, 9.0, 99.0, (0.5, 0.5))
BROKEN = Prediction("c.png", error="broken, really")
EVERY = [GOOD, DOUBTFUL, BROKEN]
COLUMNS = Columns(threshold=0.6, classes=("cup", "pot"))


def test_a_csv_has_a_row_for_every_file_whatever_it_is_called():
    text = "".join(csv_lines(map(COLUMNS.row, EVERY), COLUMNS))
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    assert [row["file"] for row in rows] == [answer.file for answer in EVERY]
    assert [row["class"] for row in rows] == ["cup", "pot", ""]
    assert [row["abstain"] for row in rows] == ["no", "yes", ""]
    assert [row["error"] for row in rows] == ["", "", "broken, really"]
    assert float(rows[0]["p(pot)"]) == 0.25
    assert rows[2]["p(pot)"] == ""


@pytest.mark.parametrize("name", ["=cmd|x.png", "+1.png", "-1.png", "@a.png", "\ta.png"])
def test_no_spreadsheet_takes_a_name_for_a_formula(name):
    assert safe_name(name) == f"./{name}"


def test_a_name_that_is_not_unicode_can_be_written(tmp_path):
    odd = b"caf\xe9.png".decode("utf-8", "surrogateescape")
    write_predictions([Prediction(odd, "cup", 1.0)], tmp_path / "out.csv", Columns())
    assert "caf\\xe9.png" in (tmp_path / "out.csv").read_text()


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_all_forms_say_the_same(tmp_path, suffix):
    out = tmp_path / f"out{suffix}"
    write_predictions(EVERY, out, COLUMNS)
    read = {
        ".csv": pd.read_csv,
        ".jsonl": lambda path: pd.read_json(path, lines=True),
        ".parquet": pd.read_parquet,
    }
    frame = read[suffix](out)
    assert list(frame.columns) == COLUMNS.names
    assert frame["file"].tolist() == [answer.file for answer in EVERY]
    assert frame["confidence"].tolist()[:2] == [0.75, 0.5]
    assert frame["confidence"].isna().tolist() == [False, False, True]
    assert frame["p(cup)"].tolist()[:2] == [0.75, 0.5]
    assert frame["error"].tolist()[2] == "broken, really"


def test_json_lines_have_nothing_where_nothing_is_known(tmp_path):
    write_predictions([BROKEN], tmp_path / "out.jsonl", Columns())
    (line,) = (tmp_path / "out.jsonl").read_text().splitlines()
    assert json.loads(line)["class"] is None


def test_what_lies_beyond_all_that_was_held_out_goes_to_a_person_however_sure_it_is():
    beyond = Prediction("d.png", "cup", 0.99, 30.0, 100.0)
    for threshold in (0.0, 0.6):
        assert Columns(threshold).row(beyond)["abstain"] is True
    assert Columns(0.0).row(DOUBTFUL)["abstain"] is False
    assert Columns(0.6).row(GOOD)["abstain"] is False


def test_columns_that_were_not_asked_for_are_not_there():
    assert Columns().names == ["file", "class", "confidence", "distance", "percentile", "error"]


def failing():
    yield GOOD
    raise OSError(5, "the disk is gone")


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_what_fails_in_the_middle_leaves_no_file(tmp_path, suffix):
    (tmp_path / f"out{suffix}").write_text("earlier")
    with pytest.raises(SpecError, match="the disk is gone"):
        write_predictions(failing(), tmp_path / f"out{suffix}", COLUMNS)
    assert [path.name for path in tmp_path.iterdir()] == [f"out{suffix}"]
    assert (tmp_path / f"out{suffix}").read_text() == "earlier"


def test_places_that_are_impossible_are_refused_before_any_work(tmp_path):
    with pytest.raises(SpecError, match=r"\.csv, \.jsonl, \.parquet"):
        check_output_file(tmp_path / "out.xlsx")
    (tmp_path / "out.csv").mkdir()
    with pytest.raises(SpecError, match="is a folder"):
        check_output_file(tmp_path / "out.csv")


def test_a_package_that_is_missing_is_reported(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(SpecError, match=r"pip install 'afield\[parquet\]'"):
        check_output_file(tmp_path / "out.parquet")


def test_many_rows_are_written_in_groups(tmp_path):
    write_predictions([GOOD] * 5000, tmp_path / "out.parquet", COLUMNS)
    assert len(pd.read_parquet(tmp_path / "out.parquet")) == 5000
