"""Curves in little room: nothing that is shown is lost."""

import json

import pytest

from afield.reporting.axes import Mark
from afield.reporting.curve_data import MAX_CURVE_POINTS, curve_data, gap_means
from afield.reporting.results import group_records
from tests.stores import DOMAINS, record


def data(records, rules=("sources", "target")):
    (benchmark,) = group_records(records)
    numbers = {name: Mark(name, place) for place, name in enumerate(benchmark.methods)}
    return curve_data(benchmark, list(rules), numbers), gap_means(benchmark, list(rules))


def test_a_run_has_its_lines_in_thousandths_and_its_picks():
    own = record("art", [0.2, 0.8, 0.6], [0.5, 0.9, 0.7])
    found, (means, exact) = data([own])
    (run,) = found["runs"]
    assert (run["a"], run["u"], run["p"]) == ([500, 900, 700], [200, 800, 600], "main")
    assert found["steps"][run["s"]] == [10, 20, 30]
    picks = {
        found["rules"][pick["r"]]: (pick["s"], pick["a"], pick["g"]) for pick in found["picks"]
    }
    assert picks == {"sources": (20, 800, 0), "target": (30, 600, 200)}
    assert found["picks"][0]["b"] == {"k": own.run.key, "s": 20, "a": 800}
    assert means["erm"] == {"sources": 0.0, "target": pytest.approx(0.2)}
    assert exact == {True}
    json.dumps(found, allow_nan=False)


def test_long_curves_are_thinned_but_picks_and_ends_stay():
    count = 1001
    home = [0.5] * count
    home[417] = 0.9
    found, _ = data([record("art", [0.4] * count, home)])
    (steps,) = found["steps"]
    assert len(steps) <= MAX_CURVE_POINTS + 2
    assert {4180, 10 * count} <= set(steps)


def test_steps_that_runs_share_are_kept_once():
    found, _ = data([record(target, [0.2, 0.8]) for target in DOMAINS])
    assert found["steps"] == [[10, 20]]
    assert [found["targets"][run["t"]] for run in found["runs"]] == list(DOMAINS)


def test_runs_of_one_checkpoint_have_no_curve():
    found, (means, _) = data([record("art", [0.5])])
    assert found is None
    assert means == {}
