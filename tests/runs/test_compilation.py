"""Compiled runs: their keys, their bytes after an interruption, and what is refused."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from afield.errors import SpecError
from afield.runs.runner import execute
from afield.runs.store import Store
from afield.studies.planning import plan_run
from tests.runs.interruption import interrupted, outcome


def planned(method, **settings):
    settings = {"steps": 9, "every": 3, "compile": True, **settings}
    return plan_run("spirals", method, target="turn0", settings=settings)


def without_compiler(monkeypatch):
    """Let torch trace networks as before, and run what it traced without a C++ compiler."""
    real = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda forward, **_: real(forward, dynamic=False, backend="aot_eager")
    )


def check_resumption(run, path):
    straight, broken = Store(path / "straight"), Store(path / "broken")
    execute(run, straight)
    torch.compiler.reset()
    interrupted(run, broken, after=3)
    assert broken.snapshot(run) is not None
    torch.compiler.reset()
    execute(run, broken)
    assert outcome(broken, run) == outcome(straight, run)
    return load_file(straight.folder(run) / "model.safetensors")


def test_compilation_is_in_the_key_and_without_it_keys_stay_as_they_are():
    compiled, plain = planned("erm"), planned("erm", compile=False)
    assert compiled.compile
    assert compiled.key != plain.key
    assert plain.key == plan_run("spirals", "erm", target="turn0", settings=SHORT).key
    assert compiled.given["compile"] is True
    assert "compile" not in plain.given


SHORT = {"steps": 9, "every": 3}


@pytest.mark.slow
def test_an_interrupted_compiled_run_ends_in_the_same_bytes(tmp_path):
    run = replace(planned("erm"), average="ema")
    weights = check_resumption(run, tmp_path)
    plain = replace(run, compile=False)
    execute(plain, Store(tmp_path / "plain"))
    usual = load_file(Store(tmp_path / "plain").folder(plain) / "model.safetensors")
    assert weights.keys() == usual.keys()
    for name, value in weights.items():
        torch.testing.assert_close(value, usual[name], atol=1e-4, rtol=1e-3)


@pytest.mark.slow
def test_masks_averages_and_inner_loops_continue_with_the_same_bytes(tmp_path, monkeypatch):
    without_compiler(monkeypatch)
    for method, average in (("dmg", "ema"), ("mldg", "swad"), ("crossgrad", "last")):
        run = replace(planned(method), average=average)
        check_resumption(run, tmp_path / method)


def test_what_torch_cannot_compile_is_refused_before_training():
    for method, settings in (
        ("iga", {}),
        ("mldg", {"mldg.second_order": True, "mldg.inner": "sgd"}),
    ):
        with pytest.raises(SpecError, match=f"compile=true: {method} differentiates gradients"):
            planned(method, **settings)
    settings = {"compile": True, "steps": 1, "mixstyle.stages": 1}
    with pytest.raises(SpecError, match="compile=true: mixstyle reads or changes layers"):
        plan_run("rotated_digits", "mixstyle", target="15deg", settings=settings)
