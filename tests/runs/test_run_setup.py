"""Compiled runs: their keys, and what is refused."""

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


def compiled_run(method, **settings):
    settings = {"steps": 9, "every": 3, "compile": True, **settings}
    return plan_run("spirals", method, target="turn0", settings=settings)


def test_compilation_is_in_the_key_and_without_it_keys_stay_as_they_are():
    compiled, plain = compiled_run("erm"), compiled_run("erm", compile=False)
    assert compiled.compile
    assert compiled.key != plain.key
    assert plain.key == plan_run("spirals", "erm", target="turn0", settings=SHORT).key
    assert compiled.given["compile"] is True
    assert "compile" not in plain.given


SHORT = {"steps": 9, "every": 3}


def test_what_torch_cannot_compile_is_refused_before_training():
    for method, settings in (
        ("iga", {}),
        ("mldg", {"mldg.second_order": True, "mldg.inner": "sgd"}),
    ):
        with pytest.raises(SpecError, match=f"compile=true: {method} differentiates gradients"):
            compiled_run(method, **settings)
    settings = {"compile": True, "steps": 1, "mixstyle.stages": 1}
    with pytest.raises(SpecError, match="compile=true: mixstyle reads or changes layers"):
        plan_run("rotated_digits", "mixstyle", target="15deg", settings=settings)


def half_run(method, **settings):
    settings = {"steps": 30, "every": 10, "precision": "bf16", **settings}
    return plan_run("spirals", method, target="turn0", settings=settings)


def test_the_precision_is_in_the_key_and_float32_leaves_keys_as_they_are():
    lower, full = half_run("erm"), half_run("erm", precision="fp32")
    assert lower.precision == "bf16"
    assert lower.key != full.key
    assert full.key == replace(full, precision="").key
    assert full.key == plan_run("spirals", "erm", target="turn0", settings=LONGER).key
    assert "precision" not in full.given
    assert lower.given["precision"] == "bf16"
    assert half_run("erm", precision="auto").precision in ("", "bf16", "fp16")


LONGER = {"steps": 30, "every": 10}


def test_another_precision_is_refused():
    with pytest.raises(SpecError, match="precision='fp8': should be 'fp32', 'bf16'"):
        half_run("erm", precision="fp8")


def test_float16_on_a_cpu_is_refused_before_training(tmp_path):
    with pytest.raises(SpecError, match="only for GPUs"):
        execute(half_run("erm", precision="fp16"), Store(tmp_path), device="cpu")


def test_weights_are_in_float32_and_differ_from_those_of_float32(store):
    weights = []
    for precision in ("bf16", "fp32"):
        run = half_run("erm", precision=precision)
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
