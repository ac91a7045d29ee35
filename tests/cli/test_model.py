"""fit, predict and export as a user types them, with what can go wrong."""

import csv
import io
import shutil

import numpy as np
import pandas as pd
import pytest
import torch

from afield.data.lookup import find_dataset

QUICK = ("--steps", "5", "--workers", "1")


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


def test_fit_says_the_honest_number_and_where_the_model_is(afield, tmp_path):
    code, out, _ = afield("fit", "spirals", "erm", "--out", "model", *QUICK)
    assert code == 0
    assert out.startswith("unseen domains: ")
    assert "4 domains left out, 1 trial" in out
    assert "confidence: temperature" in out
    assert "model in model" in out
    assert (tmp_path / "model" / "README.md").exists()
    code, _, err = afield("fit", "spirals", "erm", "--out", "model", *QUICK)
    assert code == 2
    assert "--force" in err
    code, _, _ = afield("fit", "spirals", "erm", "--out", "model", "--force", *QUICK)
    assert code == 0


def test_fit_without_an_estimate_says_that_there_is_none(afield):
    words = ("fit", "spirals", "--method", "vrex", "--out", "m", "--no-estimate", *QUICK)
    code, out, _ = afield(*words)
    assert code == 0
    assert out == "unseen domains: not estimated\nmodel in m\n"


def test_fit_takes_what_a_bench_has_shown(afield):
    afield("bench", "spirals", "--methods", "erm,vrex", "--trials", "1", *QUICK)
    code, out, _ = afield("fit", "spirals", "best", "--out", "m", "--workers", "1")
    assert code == 0
    assert ": chosen among 2 recipes by this number, which is a little too good" in out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("spirals",), "which method?"),
        (("spirals", "erm", "--method", "vrex"), "give one of them"),
        (("spirals", "ermm"), "did you mean 'erm'?"),
        (("spiral", "erm"), "did you mean 'spirals'?"),
        (("spirals", "best"), "no benchmark of spirals there"),
        (("spirals", "best", "--steps", "3"), "as it is in the store"),
    ],
)
def test_mistakes_are_told_in_one_line(afield, tmp_path, words, told):
    code, out, err = afield("fit", *words, "--out", "m")
    assert (code, out) == (2, "")
    assert told in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "m").exists()


def test_predict_has_a_row_for_every_sample_and_for_what_is_broken(afield, spiral_model, new):
    code, out, err = afield("predict", spiral_model, "new", "--abstain", "0.1", "--probabilities")
    assert code == 0
    found = rows(out)
    names = ["new/b.npy[0]", "new/c.npy", *(f"new/deep/a.npy[{i}]" for i in range(3))]
    assert [row["file"] for row in found] == names
    assert "not an .npy of plain arrays" in found[1]["error"]
    assert found[0]["percentile"] == "100"
    assert [row["abstain"] for row in found[:2]] == ["yes", ""]
    for row in found[2:]:
        assert row["class"] in ("first", "second")
        assert float(row["p(first)"]) + float(row["p(second)"]) == pytest.approx(1, abs=1e-6)
        assert float(row["confidence"]) >= 0.5
    assert "4 predictions; 1 could not be read, see the column error" in err


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_predict_writes_files(afield, spiral_model, new, tmp_path, suffix):
    code, out, err = afield("predict", spiral_model, new, "--out", f"answers.{suffix}")
    assert (code, out) == (0, "")
    assert f"4 predictions in answers.{suffix}" in err
    if suffix == "parquet":
        assert len(pd.read_parquet(tmp_path / "answers.parquet")) == 5


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


def test_to_abstain_from_everything_or_nothing(afield, spiral_model, new):
    _, out, _ = afield("predict", spiral_model, new / "deep", "--abstain", "0")
    assert {row["abstain"] for row in rows(out)} == {"no"}


def test_a_folder_without_files_and_broken_ones_only_are_told(afield, spiral_model, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "answers.csv").write_text("of yesterday")
    for words in ((), ("--out", "answers.csv")):
        code, out, err = afield("predict", spiral_model, "empty", *words)
        assert (code, out) == (2, "")
    assert (tmp_path / "answers.csv").read_text() == "of yesterday"
    assert "no files there; spirals-erm takes arrays of n × 2 numbers" in err
    code, out, _ = afield("predict", spiral_model, "nosuch.npy")
    assert code == 1
    assert rows(out)[0]["error"] == "no such file or folder"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--out", "a.xlsx"), ".csv, .jsonl, .parquet"),
        (("--domain", "turn0"), "cannot use a known domain"),
        (("--device", "nosuch"), "device 'nosuch' cannot be used"),
        pytest.param(
            ("--device", "cuda"),
            "device 'cuda' cannot be used",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="it can be used here"),
        ),
    ],
)
def test_what_cannot_be_asked_is_told_in_one_line(afield, spiral_model, new, words, told):
    code, out, err = afield("predict", spiral_model, new, *words)
    assert (code, out) == (2, "")
    assert told in err
    assert len(err.splitlines()) == 1


def test_a_place_without_a_model_is_told(afield, tmp_path):
    for name in ("nowhere", "."):
        code, _, err = afield("predict", name, "x.npy")
        assert code == 2
        assert err.startswith("error: ")
        assert len(err.splitlines()) == 1


def test_a_truncated_model_is_told(afield, model_folder):
    file = model_folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:100])
    code, _, err = afield("predict", model_folder, "x.npy")
    assert code == 2
    assert "changed or cut short" in err


def test_a_model_without_an_estimate_warns_and_cannot_abstain(afield, new):
    afield("fit", "spirals", "erm", "--out", "m", "--no-estimate", *QUICK)
    code, _, err = afield("predict", "m", new)
    assert code == 0
    assert "confidences are not calibrated" in err
    code, _, err = afield("predict", "m", new, "--abstain", "0.1")
    assert code == 2
    assert "--no-estimate" in err


@pytest.mark.slow
def test_export_says_what_goes_in_and_comes_out(afield, spiral_model, tmp_path):
    shutil.copytree(spiral_model, tmp_path / "model")
    code, out, _ = afield("export", "model", "--to", "torch")
    assert code == 0
    assert "model.pt2: x (n × 2, float32) to logits and probabilities" in out
    assert (tmp_path / "model.pt2").exists()
    code, _, err = afield("export", "model", "--to", "tflite")
    assert code == 2
    assert "onnx or torch" in err


def test_merge_gives_the_folder_of_a_model(afield, spiral_model, new):
    words = ("merge", "average", spiral_model, spiral_model, spiral_model, "--out", "merged")
    code, out, _ = afield(*words)
    assert code == 0
    assert "merged model in merged" in out
    code, out, err = afield("predict", "merged", new / "deep")
    assert code == 0
    assert len(rows(out)) == 3
    assert "not calibrated" in err
