"""What is shown of a benchmark, before it is a page."""

import base64
import io
from dataclasses import replace

import pandas as pd
import pytest

from afield.reporting.results import group_records
from afield.reporting.sections import build_section
from tests.stores import DOMAINS, benchmark_records, held_out, noisy, record, trusted


def shown(*records):
    every = [each for own in records for each in own]
    (benchmark,) = group_records(every)
    return build_section(0, benchmark, every, "again")


ERM = benchmark_records(noisy(0.7, 3, 3, seed=1))
GOOD = benchmark_records(noisy(0.8, 3, 3, seed=2), method="good")


def test_rows_stand_by_their_mean_and_the_best_are_marked():
    found = shown(ERM, GOOD)
    rule = found.rules[0]
    assert rule["name"] == "sources"
    assert rule["columns"] == [*DOMAINS, "mean", "worst", "in-domain"]
    assert [row["method"].name for row in rule["rows"]] == ["good", "erm"]
    mean = rule["columns"].index("mean")
    assert [row["cells"][mean]["place"] for row in rule["rows"]] == [1, 2]
    assert float(rule["rows"][0]["cells"][mean]["value"]) == pytest.approx(0.8, abs=0.02)
    assert rule["rows"][0]["cells"][mean]["spread"]


def test_trust_stands_with_the_summaries_and_the_least_calibration_error_is_best():
    found = shown(trusted(ERM, 0.1), trusted(GOOD, 0.3))
    rule = found.rules[0]
    trust = ["calibration error", "accuracy at 90 %"]
    assert rule["columns"][-2:] == trust
    assert set(trust) <= set(found.summaries)
    assert [name for name in rule["columns"] if name in found.low] == ["calibration error"]
    places = {row["method"].name: [c["place"] for c in row["cells"][-2:]] for row in rule["rows"]}
    assert places == {"erm": [1, 1], "good": [2, 2]}


def test_what_has_seen_the_target_is_never_marked():
    bound = benchmark_records(
        noisy(0.95, 3, 3), method="target_expert", role="merged", experts=("x",)
    )
    found = shown(ERM, GOOD, bound)
    rows = {row["method"].name: row for row in found.rules[0]["rows"]}
    assert {cell["place"] for cell in rows["target_expert"]["cells"]} == {0}
    assert found.bound == "target_expert"
    assert "target_expert" not in [row.name for row in found.forest.rows]
    assert found.facts.startswith("2 methods, 3 unseen domains, 3 trials")


def test_one_trial_has_no_spread():
    found = shown(benchmark_records([[0.5, 0.6, 0.7]], method="vrex"))
    assert {cell["spread"] for cell in found.rules[0]["rows"][0]["cells"]} == {""}


def test_a_missing_number_is_a_dash_and_sorts_last():
    found = shown(ERM, GOOD[:4])
    row = next(row for row in found.rules[0]["rows"] if row["method"].name == "good")
    cells = dict(zip(found.rules[0]["columns"], row["cells"], strict=True))
    assert cells["art"]["number"] != "–"
    none = shown(ERM, GOOD[:2])
    assert [row["method"].name for row in none.rules[0]["rows"]] == ["erm", "good"]
    last = none.rules[0]["rows"][-1]["cells"][-1]
    assert (last["number"], last["value"]) == ("–", "")


def test_downloads_are_the_tables_themselves():
    found = shown(ERM, GOOD)
    frame = pd.read_csv(io.BytesIO(base64.b64decode(found.csv)))
    own = frame.query("rule == 'sources' and method == 'good' and domain == 'mean'")
    assert own["accuracy"].item() == pytest.approx(
        float(found.rules[0]["rows"][0]["cells"][3]["value"]), abs=1e-6
    )
    assert rb"\begin{tabular}" in base64.b64decode(found.latex)


def test_held_out_domains_have_their_own_columns_and_one_curve():
    records = [
        held_out(method, [0.5, 0.6], trial=trial) for method in ("erm", "vrex") for trial in (0, 1)
    ]
    found = shown(records)
    assert found.rules[0]["name"] == "validation"
    assert found.rules[0]["columns"] == ["mean", "worst 10 %", "spread", "in-domain"]
    assert found.title == "many, 2 domains held out, 2 validating"
    assert found.file == "many_2_domains_held_out_2_validating"


def test_gaps_say_what_they_were_read_off():
    exact = shown([record(t, [0.2, 0.8, 0.6], [0.5, 0.6, 0.9]) for t in DOMAINS])
    assert "the whole main part." in exact.gaps_note
    assert exact.gaps["rows"][0]["cells"][0] == pytest.approx(0.2)
    guess = shown([record(t, [0.2, 0.8, 0.6], [0.5, 0.6, 0.9], exact=False) for t in DOMAINS])
    assert "partly luck" in guess.gaps_note
    assert "a sample of at most 64" in guess.curves_note


def test_costs_have_bars_on_one_scale():
    slow = [
        record(t, [0.4, 0.5], method="slow", trial=i, seconds=4.0)
        for t in DOMAINS
        for i in range(3)
    ]
    found = shown(ERM, slow)
    assert [each["method"].name for each in found.costs] == ["erm", "slow"]
    assert [each["bar"] for each in found.costs] == [25.0, 100.0]
    assert found.one == 25.0
    assert not found.memory


def test_marks_tell_twenty_methods_apart():
    records = [benchmark_records([[0.5 + 0.01 * n] * 3], method=f"m{n:02}") for n in range(20)]
    marks = shown(*records).methods
    assert len({(mark.colour, mark.shape) for mark in marks}) == 20


def test_where_runs_are_missing_there_is_no_picture_but_all_numbers_that_are_known():
    found = shown([record("art", [0.5])])
    assert found.forest is None
    assert found.rules[0]["rows"][0]["cells"][0]["number"] == "50.0"


def test_a_run_that_no_rule_reads_is_still_shown_with_its_command():
    alone = record("art", [0.5])
    twin = replace(alone, run=replace(alone.run, sources=("sketch",)))
    found = shown([twin])
    assert found.rules == []
    assert found.forest is None
    assert found.headline.told.startswith("No table can be made")
    assert found.commands
