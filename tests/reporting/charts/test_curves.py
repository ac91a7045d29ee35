"""Curves, picks and gaps of records that are made by hand; nothing that is shown is lost."""

import json
from dataclasses import replace

import pytest

from afield.reporting.charts.axes import Mark
from afield.reporting.charts.curves import (
    HELD_OUT_TARGET,
    MAX_CURVE_POINTS,
    curve,
    curve_data,
    gap,
    gap_means,
    picked_checkpoints,
    selection_cases,
    whole_split,
)
from afield.reporting.results import group_records
from tests.stores import DOMAINS, held_out, record, score


def one(records):
    (group,) = group_records(records)
    return group


def test_a_gap_is_from_the_choice_to_the_best_of_all_draws():
    records = [
        record("art", [0.2, 0.8, 0.6], [0.5, 0.6, 0.9]),
        record("art", [0.3, 0.9, 0.5], [0.4, 0.5, 0.6], draw=1),
    ]
    (case,) = selection_cases(one(records))
    choice = picked_checkpoints(one(records), "sources")["erm", 0, "art"]
    assert (choice.key, choice.step, choice.accuracy) == (records[0].run.key, 30, 0.6)
    result = gap(case, choice)
    assert result.best.key == records[1].run.key
    assert result.best.step == 20
    assert result.behind == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("options", "is_whole", "behind"),
    [
        ({"exact": False}, False, None),
        # A sample that is the whole test split gives the gap.
        ({"exact": False, "sample_size": 100}, True, 0.2),
    ],
)
def test_on_a_sample_of_the_test_split_no_gap_is_known(options, is_whole, behind):
    own = record("art", [0.2, 0.8, 0.6], [0.5, 0.6, 0.9], **options)
    (case,) = selection_cases(one([own]))
    actual = gap(case, picked_checkpoints(one([own]), "sources")["erm", 0, "art"])
    assert (actual and actual.behind) == (behind and pytest.approx(behind))
    line = curve(own)
    assert (line.split, line.size, line.whole) == (
        "sample",
        options.get("sample_size", 64),
        is_whole,
    )
    assert whole_split(own) == ("sample" if is_whole else "")


def test_a_sample_that_disagrees_with_the_main_split_is_not_the_whole():
    own = record("art", [0.2, 0.8], [0.5, 0.9], exact=False, sample_size=100)
    last = own.checkpoints[-1]
    art = replace(last.scores["art"], sample=score(0.7, 100))
    changed = replace(last, scores={**last.scores, "art": art})
    assert whole_split(replace(own, checkpoints=(own.checkpoints[0], changed))) == ""


def test_with_one_checkpoint_there_is_no_gap():
    records = [record("art", [0.8])]
    (case,) = selection_cases(one(records))
    assert gap(case, picked_checkpoints(one(records), "sources")["erm", 0, "art"]) is None


def test_a_curve_has_the_sources_mean_and_the_unseen_domain_at_every_step():
    points = curve(record("photo", [0.2, 0.8], [0.5, 0.9]))
    assert points.steps == [10, 20]
    assert points.sources == [0.5, 0.9]
    assert points.unseen == [0.2, 0.8]
    assert points.validation == []
    assert points.split == "main"


def test_held_out_domains_are_one_case_and_their_mean_is_its_accuracy():
    records = [held_out("erm", [0.5, 0.7])]
    (case,) = selection_cases(one(records))
    assert case.target == HELD_OUT_TARGET
    assert picked_checkpoints(one(records), "validation")[
        "erm", 0, HELD_OUT_TARGET
    ].accuracy == pytest.approx(0.6)
    assert curve(records[0]).validation == [pytest.approx(0.7)]


def test_twins_are_no_cases():
    alone = record("art", [0.2, 0.8])
    twin = replace(alone, run=replace(alone.run, sources=("sketch",)))
    assert twin.unseen == ("art", "photo")
    assert [case.records for case in selection_cases(one([alone, twin]))] == [[alone]]


def test_cases_are_in_the_order_of_trials_and_domains():
    records = [record(t, [0.5], trial=i) for i in (1, 0) for t in reversed(DOMAINS)]
    result = [(case.trial, case.target) for case in selection_cases(one(records))]
    assert result == [(i, t) for i in (0, 1) for t in DOMAINS]


def data(records, rules=("sources", "target")):
    (benchmark,) = group_records(records)
    numbers = {name: Mark(name, place) for place, name in enumerate(benchmark.methods)}
    return curve_data(benchmark, list(rules), numbers), gap_means(benchmark, list(rules))


def test_a_run_has_its_lines_in_thousandths_and_its_picks():
    own = record("art", [0.2, 0.8, 0.6], [0.5, 0.9, 0.7])
    result, means = data([own])
    (run,) = result["runs"]
    assert (run["a"], run["u"], run["n"]) == ([500, 900, 700], [200, 800, 600], 100)
    assert run["w"]
    assert result["steps"][run["s"]] == [10, 20, 30]
    picks = {
        result["rules"][pick["r"]]: (pick["s"], pick["a"], pick["g"]) for pick in result["picks"]
    }
    assert picks == {"sources": (20, 800, 0), "target": (30, 600, 200)}
    assert result["picks"][0]["b"] == {"k": own.run.key, "s": 20, "a": 800}
    assert means["erm"] == {"sources": 0.0, "target": pytest.approx(0.2)}
    json.dumps(result, allow_nan=False)


def test_long_curves_are_thinned_but_picks_and_ends_stay():
    count = 1001
    home = [0.5] * count
    home[417] = 0.9
    result, _ = data([record("art", [0.4] * count, home)])
    (steps,) = result["steps"]
    assert len(steps) <= MAX_CURVE_POINTS + 2
    assert {4180, 10 * count} <= set(steps)


def test_steps_that_runs_share_are_kept_once():
    result, _ = data([record(target, [0.2, 0.8]) for target in DOMAINS])
    assert result["steps"] == [[10, 20]]
    assert [result["targets"][run["t"]] for run in result["runs"]] == list(DOMAINS)


def test_runs_of_one_checkpoint_have_no_curve():
    result, means = data([record("art", [0.5])])
    assert result is None
    assert means == {"erm": {}}
