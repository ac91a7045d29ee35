"""Runs in lower precision: their keys, their weights, and their models."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from afield.deployment.exporting import export
from afield.deployment.fitting import fit
from afield.deployment.model import load
from afield.errors import SpecError
from afield.runs.runner import execute
from afield.runs.store import Store
from afield.studies.planning import plan_run


def planned(method, **settings):
    settings = {"steps": 30, "every": 10, "precision": "bf16", **settings}
    return plan_run("spirals", method, target="turn0", settings=settings)


def test_the_precision_is_in_the_key_and_float32_leaves_keys_as_they_are():
    lower, full = planned("erm"), planned("erm", precision="fp32")
    assert lower.precision == "bf16"
    assert lower.key != full.key
    assert full.key == replace(full, precision="").key
    assert full.key == plan_run("spirals", "erm", target="turn0", settings=SHORT).key
    assert "precision" not in full.given
    assert lower.given["precision"] == "bf16"
    assert planned("erm", precision="auto").precision in ("", "bf16", "fp16")


SHORT = {"steps": 30, "every": 10}


def test_another_precision_is_refused():
    with pytest.raises(SpecError, match="precision='fp8': should be 'fp32', 'bf16'"):
        planned("erm", precision="fp8")


def test_float16_on_a_cpu_is_refused_before_training(tmp_path):
    with pytest.raises(SpecError, match="only for GPUs"):
        execute(planned("erm", precision="fp16"), Store(tmp_path), device="cpu")


def test_weights_are_in_float32_and_differ_from_those_of_float32(store):
    weights = []
    for precision in ("bf16", "fp32"):
        run = planned("erm", precision=precision)
        execute(run, store)
        weights.append(load_file(store.folder(run) / "model.safetensors"))
    assert all(value.dtype == torch.float32 for value in weights[0].values())
    assert not any(map(torch.equal, weights[0].values(), weights[1].values()))


@pytest.mark.slow
def test_a_model_that_was_trained_in_bfloat16_predicts_and_is_exported(two_colours, tmp_path):
    settings = {"steps": 2, "every": 1, "size": 32, "backbone": "small:cnn", "precision": "bf16"}
    model = fit(two_colours, "erm", tmp_path / "m", store=tmp_path / "r", settings=settings)
    assert model.about.run.precision == "bf16"
    files = sorted(two_colours.rglob("*.png"))[:3]
    predictions = list(load(tmp_path / "m").predictions(files))
    assert [p.file for p in predictions]
    assert not any(p.error for p in predictions)
    assert export(tmp_path / "m", "torch", tmp_path / "m.pt2")
