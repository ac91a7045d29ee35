"""`afield fit`, `export`, and `merge` of model folders, as a user types them."""

import re
import shutil

import pytest

QUICK = ("--steps", "5", "--workers", "1")


def test_fit_prints_the_estimate_and_where_the_model_is(afield, refusal, tmp_path):
    words = ("fit", "spirals", "erm", "--out", "model", *QUICK)
    code, out, _ = afield(*words)
    assert code == 0
    assert re.match(r"accuracy on one more unseen domain: \d+–\d+ % \(90 % prediction ", out)
    assert "4 domains left out, 1 trial" in out
    assert "confidence: temperature" in out
    assert "model in model" in out
    assert (tmp_path / "model" / "README.md").exists()
    assert "--force" in refusal(*words)
    assert afield(*words, "--force")[0] == 0


def test_fit_without_an_estimate_says_that_there_is_none(afield):
    words = ("fit", "spirals", "--method", "vrex", "--out", "m", "--no-estimate", *QUICK)
    code, out, _ = afield(*words)
    assert code == 0
    assert out == "accuracy on unseen domains: not estimated\nmodel in m\n"


def test_fit_takes_the_best_method_of_a_bench(afield):
    afield("bench", "spirals", "--methods", "erm,vrex", "--trials", "1", *QUICK)
    code, out, _ = afield("fit", "spirals", "best", "--out", "m", "--workers", "1")
    assert code == 0
    assert re.search(
        r": the best of 2 candidates, with \d+\.\d %; choosing cost \d+\.\d points: ", out
    )


@pytest.mark.slow
def test_export_says_what_goes_in_and_comes_out(afield, refusal, spiral_model, tmp_path):
    shutil.copytree(spiral_model, tmp_path / "model")
    code, out, _ = afield("export", "model", "--to", "torch")
    assert code == 0
    assert "model.pt2: from x (n × 2, float32) to logits and probabilities" in out
    assert (tmp_path / "model.pt2").exists()
    assert "onnx or torch" in refusal("export", "model", "--to", "tflite")


def test_merge_of_model_folders_gives_a_model_folder(afield, spiral_model, tmp_path):
    words = ("merge", "average", spiral_model, spiral_model, spiral_model, "--out", "merged")
    code, out, _ = afield(*words)
    assert code == 0
    assert "merged model in merged" in out
    assert (tmp_path / "merged" / "model.json").exists()
