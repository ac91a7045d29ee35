"""Defaults, limits of settings, facts of datasets and small networks are as they were."""

import json

import pytest

from tests.declared import PATH, declared

EXPECTED = json.loads(PATH.read_text())


@pytest.mark.parametrize("kind", [kind for kind in EXPECTED if kind != "networks"])
def test_what_is_declared_is_as_recorded(kind):
    actual = declared(kind)
    for name, facts in EXPECTED[kind].items():
        for fact, expected in facts.items():
            now = actual[name][fact]
            # What is added later has no record yet.
            if isinstance(expected, dict):
                now = {key: value for key, value in now.items() if key in expected}
            assert now == expected, f"{name}: if meant, run `python -m tests.declared`"


@pytest.mark.slow
def test_small_networks_compute_what_they_did():
    actual = declared("networks")
    assert actual.keys() >= EXPECTED["networks"].keys()
    for name, logits in EXPECTED["networks"].items():
        assert actual[name] == pytest.approx(logits, rel=1e-3), name
