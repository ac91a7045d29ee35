"""Compiled runs: their keys, and what is refused."""

import pytest

from afield.errors import SpecError
from afield.studies.planning import plan_run


def planned(method, **settings):
    settings = {"steps": 9, "every": 3, "compile": True, **settings}
    return plan_run("spirals", method, target="turn0", settings=settings)


def test_compilation_is_in_the_key_and_without_it_keys_stay_as_they_are():
    compiled, plain = planned("erm"), planned("erm", compile=False)
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
            planned(method, **settings)
    settings = {"compile": True, "steps": 1, "mixstyle.stages": 1}
    with pytest.raises(SpecError, match="compile=true: mixstyle reads or changes layers"):
        plan_run("rotated_digits", "mixstyle", target="15deg", settings=settings)
