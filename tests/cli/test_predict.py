"""`afield predict` as a user types it, with what can go wrong."""

import csv
import io

import numpy as np
import pandas as pd
import pytest
import torch

from afield.cli import console
from afield.cli.predict import _print_predictions
from afield.data.lookup import find_dataset
from afield.deployment.predictions import Columns, Prediction


@pytest.fixture
def new(tmp_path):
    """Three files: two of the data, one broken."""
    folder = tmp_path / "new" / "deep"
    folder.mkdir(parents=True)
    np.save(folder / "a.npy", find_dataset("spirals").load()["turn0"].x[:3].numpy())
    np.save(tmp_path / "new" / "b.npy", np.full((1, 2), 50.0))
    (tmp_path / "new" / "c.npy").write_text("text")
    (tmp_path / "new" / "notes.txt").write_text("text")
    return tmp_path / "new"


def rows(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_predict_has_a_row_for_every_sample_and_for_what_is_broken(afield, spiral_model, new):
    code, out, err = afield("predict", spiral_model, "new", "--abstain", "0.1", "--probabilities")
    assert code == 0
    result = rows(out)
    names = ["new/b.npy[0]", "new/c.npy", *(f"new/deep/a.npy[{i}]" for i in range(3))]
    assert [row["file"] for row in result] == names
    assert "not an .npy file of plain arrays" in result[1]["error"]
    assert result[0]["percentile"] == "100"
    assert [row["abstain"] for row in result[:2]] == ["yes", ""]
    for row in result[2:]:
        assert row["class"] in ("first", "second")
        assert float(row["p(first)"]) + float(row["p(second)"]) == pytest.approx(1, abs=1e-6)
        assert float(row["confidence"]) >= 0.5
    assert "4 predictions; 1 file could not be read, see the column 'error'" in err


def test_predict_writes_a_file(afield, spiral_model, new, tmp_path):
    code, out, err = afield("predict", spiral_model, new, "--out", "answers.parquet")
    assert (code, out) == (0, "")
    assert "4 predictions in answers.parquet" in err
    assert len(pd.read_parquet(tmp_path / "answers.parquet")) == 5


def test_predict_overwrites_a_file_only_with_force(afield, refusal, spiral_model, new, tmp_path):
    (tmp_path / "answers.csv").write_text("of yesterday")
    message = refusal("predict", spiral_model, new, "--out", "answers.csv")
    assert "answers.csv: exists already; give another name, or --force" in message
    assert (tmp_path / "answers.csv").read_text() == "of yesterday"
    assert afield("predict", spiral_model, new, "--out", "answers.csv", "--force")[0] == 0
    assert (tmp_path / "answers.csv").read_text() != "of yesterday"


def test_a_small_network_leaves_the_cores_to_what_reads_files(afield, spiral_model, new):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        afield("predict", spiral_model, new)
        assert torch.get_num_threads() == 1
        afield("predict", spiral_model, new, "--threads", "2")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_folder_without_files_and_broken_ones_only_are_reported(afield, spiral_model, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "answers.csv").write_text("of yesterday")
    for words in ((), ("--out", "answers.csv", "--force")):
        code, out, err = afield("predict", spiral_model, "empty", *words)
        assert (code, out) == (2, "")
    assert (tmp_path / "answers.csv").read_text() == "of yesterday"
    assert "no files to predict; spirals-erm takes arrays of n × 2 numbers" in err
    code, out, _ = afield("predict", spiral_model, "nosuch.npy")
    assert code == 1
    assert rows(out)[0]["error"] == "no such file or folder"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--out", "a.xlsx"), ".csv, .jsonl, .parquet"),
        (("--domain", "turn0"), "cannot use a domain label"),
        (("--device", "nosuch"), "device 'nosuch' cannot be used"),
        (("--adapt", "t4a"), "did you mean 't3a'?"),
        (("--adapt", "tent"), "tent adapts BatchNorm layers"),
        (("--set", "t3a.keep=5"), "--set is for --adapt"),
        (("--adapt", "t3a", "--abstain", "0.1"), "--abstain needs calibrated confidences"),
    ],
)
def test_what_cannot_be_asked_is_reported_in_one_line(refusal, spiral_model, new, words, message):
    assert message in refusal("predict", spiral_model, new, *words)


def test_a_model_without_an_estimate_warns_and_cannot_abstain(afield, refusal, new):
    afield("fit", "spirals", "erm", "--out", "m", "--no-estimate", "--steps", "5")
    code, _, err = afield("predict", "m", new)
    assert code == 0
    assert "confidences are not calibrated" in err
    assert "--no-estimate" in refusal("predict", "m", new, "--abstain", "0.1")


def test_predict_adapts_to_the_files(afield, spiral_model, new):
    code, out, err = afield("predict", spiral_model, new, "--adapt", "t3a", "--set", "t3a.keep=5")
    assert code == 0
    assert [row["class"] for row in rows(out)].count("") == 1
    assert "calibrated without --adapt; its confidences are not calibrated" in err


def test_a_model_that_was_fitted_to_adapt_does_so(afield, new):
    words = ("fit", "spirals", "erm", "--adapt", "t3a", "--no-estimate", "--steps", "20")
    code, out, _ = afield(*words, "--out", "m")
    assert code == 0
    assert "adapts this model to the files it is given (t3a)" in out
    code, adapted, err = afield("predict", "m", new)
    assert code == 0
    assert "note: adapting to these files (t3a)" in err
    assert afield("predict", "m", new, "--adapt", "t3a")[1] == adapted
    code, alone, err = afield("predict", "m", new, "--adapt", "none")
    assert "adapting" not in err
    assert alone != adapted


def test_a_table_on_a_terminal_has_no_empty_columns(monkeypatch):
    terminal = console.SafeConsole(file=io.StringIO(), force_terminal=True, width=80)
    monkeypatch.setattr(console, "out", terminal)
    good = Prediction("a.png", "dog", 0.9, 1.25)
    _print_predictions([good], Columns())
    text = terminal.file.getvalue()
    assert "dog" in text
    assert "percentile" not in text
    assert "error" not in text
    _print_predictions([good, Prediction("b.png", error="broken file")], Columns())
    assert "broken file" in terminal.file.getvalue()


def test_many_predictions_are_counted_by_class_on_a_terminal(monkeypatch):
    terminal = console.SafeConsole(file=io.StringIO(), force_terminal=True, width=80)
    monkeypatch.setattr(console, "out", terminal)
    many = [Prediction(f"{i}.png", "dog" if i % 3 else "cat", 0.5 + i / 200) for i in range(60)]
    _print_predictions([*many, Prediction("b.png", error="broken file")], Columns())
    text = terminal.file.getvalue()
    assert "7.png" not in text
    lines = [line.split() for line in text.splitlines()]
    assert ["dog", "40", "0.65"] in lines
    assert ["cat", "20", "0.642"] in lines
    assert "--out answers.csv" in text


def test_predictions_on_a_table_keep_the_names_of_its_rows(afield, tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"patient_id": [f"p{i:02}" for i in range(60)], "age": rng.normal(size=60)}
    )
    frame["site"] = np.repeat(["a", "b"], 30)
    frame["label"] = np.where(frame["age"] > 0, "ill", "well")
    frame.to_csv(tmp_path / "train.csv", index=False)
    words = ("--domain", "site", "--steps", "5", "--no-estimate", "--out", "model")
    code, _, err = afield("fit", "train.csv", "erm", *words)
    assert code == 0, err
    frame[::-1].to_csv(tmp_path / "new.csv", index=False)
    code, out, _ = afield("predict", "model", "new.csv")
    assert code == 0
    assert [row["id"] for row in rows(out)] == list(frame["patient_id"][::-1])
    assert afield("predict", "model", "new.csv", "--out", "answers.parquet")[0] == 0
    assert pd.read_parquet(tmp_path / "answers.parquet")["id"][0] == "p59"
