"""What is shown of a benchmark, before it is a page."""

import base64
import io
from dataclasses import replace

import pandas as pd
import pytest

from afield.reporting.charts.axes import Mark
from afield.reporting.comparison import comparisons
from afield.reporting.results import group_records
from afield.reporting.sections import build_rule_table, build_section
from afield.reporting.sentences import format_points
from afield.reporting.table import tabulate
from tests.reporting.tables import measured
from tests.stores import DOMAINS, benchmark_records, held_out, noisy, record, trusted


def shown(*records, rules=("all",)):
    every = [each for own in records for each in own]
    (benchmark,) = group_records(every)
    return build_section(0, benchmark, every, "runs", "again", rules)


ERM = benchmark_records(noisy(0.7, 3, 3, seed=1))
GOOD = benchmark_records(noisy(0.8, 3, 3, seed=2), method="good")


def test_what_has_seen_the_target_is_never_marked():
    bound = benchmark_records(
        noisy(0.95, 3, 3), method="target_expert", role="merged", experts=("x",)
    )
    section = shown(ERM, GOOD, bound)
    rows = {row.method.name: row for row in section.rules[0].rows}
    assert not any(cell.best for cell in rows["target_expert"].cells)
    assert section.bound == "target_expert"
    assert "target_expert" not in [row.name for row in section.forest.rows]
    assert section.facts.startswith("2 methods, 3 unseen domains, 3 trials")


def test_downloads_are_the_tables_themselves():
    section = shown(ERM, GOOD)
    frame = pd.read_csv(io.BytesIO(base64.b64decode(section.csv)))
    own = frame.query("rule == 'sources' and method == 'good' and domain == 'mean'")
    assert own["accuracy"].item() == pytest.approx(
        float(section.rules[0].rows[0].cells[0].value), abs=1e-6
    )
    assert rb"\begin{tabular}" in base64.b64decode(section.latex)


def test_held_out_domains_have_their_own_columns_and_one_curve():
    records = [
        held_out(method, [0.5, 0.6], trial=trial) for method in ("erm", "vrex") for trial in (0, 1)
    ]
    section = shown(records)
    assert section.rules[0].rule == "validation"
    assert list(section.rules[0].columns) == ["mean", "worst 10 %", "spread", "in-domain"]
    assert section.title == "many, 2 domains held out, 2 validating"
    assert section.file == "many_2_domains_held_out_2_validating"


def test_gaps_are_shown_only_where_the_whole_test_split_was_evaluated():
    exact = shown([record(t, [0.2, 0.8, 0.6], [0.5, 0.6, 0.9]) for t in DOMAINS])
    assert "target chooses between the last checkpoints" in exact.gaps.note
    assert exact.gaps.rows[0].gaps[0] == pytest.approx(0.2)
    guess = shown([record(t, [0.2, 0.8, 0.6], [0.5, 0.6, 0.9], exact=False) for t in DOMAINS])
    assert guess.gaps is None
    assert "64 or more samples" in guess.curves_note
    assert "two standard errors" in guess.curves_note


def test_a_rule_that_looks_at_the_target_is_shown_only_if_it_is_asked_for():
    assert [each.rule for each in shown(ERM, GOOD, rules=()).rules] == ["sources"]
    assert [each.rule for each in shown(ERM, GOOD, rules=["target"]).rules] == ["target"]


def test_with_one_trial_the_comparison_says_why_it_is_empty():
    one = shown(*([r for r in every if r.run.trial == 0] for every in (ERM, GOOD)))
    assert {each.lack for each in one.rules} == {"there is only one trial"}
    assert {each.lack for each in shown(ERM, GOOD).rules} == {""}


def test_costs_have_bars_on_one_scale():
    slow = [
        record(t, [0.4, 0.5], method="slow", trial=i, seconds=4.0)
        for t in DOMAINS
        for i in range(3)
    ]
    section = shown(ERM, slow)
    assert [each.method.name for each in section.costs] == ["erm", "slow"]
    assert [each.bar for each in section.costs] == [25.0, 100.0]
    assert section.reference_bar_end == 25.0
    assert not section.memory


def test_where_runs_are_missing_there_is_no_picture_but_all_numbers_that_are_known():
    section = shown([record("art", [0.5])])
    assert section.forest is None
    assert section.rules[0].rows[0].cells[2].number == "50.0"
    assert section.summary.verdict == "No method has finished all its runs yet."


def test_a_run_that_no_rule_reads_is_still_shown_with_its_command():
    alone = record("art", [0.5])
    section = shown([replace(alone, run=replace(alone.run, sources=("sketch",)))])
    assert section.rules == []
    assert section.forest is None
    assert section.headline.sentence.startswith("No table: ")
    assert section.commands


def test_headline_plot_and_table_show_the_same_comparison():
    section = shown(ERM, GOOD, benchmark_records(noisy(0.6, 3, 3, seed=3), method="bad"))
    row = section.rules[0].comparisons[0]
    assert section.forest.rows[0].name == section.headline.best == row.method.name == "good"
    low, high = map(format_points, row.comparison.interval())
    assert f"{low} to {high}, corrected for 2 comparisons" in section.headline.sentence
    assert section.forest.rows[0].range == f"{low} to {high}"
    assert "corrected for 2 comparisons" in section.forest.caption
    assert "corrected" not in shown(ERM, GOOD).forest.caption
    assert row.intervals[:2] == row.comparison.interval(corrected=False)
    assert row.intervals[2:] == row.comparison.interval(corrected=False, new_domain=True)
    assert row.intervals[0] > row.comparison.interval().low


def test_the_caption_of_the_plot_names_the_metric():
    records = measured([*ERM, *GOOD], macro_f1=0.25)
    (benchmark,) = group_records(records, metric="macro_f1")
    section = build_section(0, benchmark, records, "runs", "again")
    start = "Macro F1 on unseen domains minus that of erm, in percentage points; bars are 95 %"
    assert section.forest.caption.startswith(start)
    assert section.headline.remarks[0].startswith("Numbers are macro F1; curves and plots")
    (incomplete,) = group_records(records[:2], metric="macro_f1")
    assert build_section(0, incomplete, records[:2], "runs", "again").forest is None


def built(*records, rule="sources"):
    every = [each for own in records for each in own]
    (results,) = group_records(every)
    marks = {name: Mark(name, number) for number, name in enumerate(results.methods)}
    best = ["good", "fair"]
    return build_rule_table(rule, tabulate(every), comparisons(results, rule), marks, best)


def test_rows_stand_by_their_mean_and_the_best_are_marked():
    table = built(ERM, GOOD)
    assert table.rule == "sources"
    assert list(table.columns) == ["mean", "worst", *DOMAINS, "in-domain"]
    assert [row.method.name for row in table.rows] == ["good", "erm"]
    assert [[cell.best for cell in row.cells] for row in table.rows] == [
        [True, *[False] * 5],
        [False] * 6,
    ]
    assert float(table.rows[0].cells[0].value) == pytest.approx(0.8, abs=0.02)
    assert table.rows[0].cells[0].stderr


def test_rows_stand_in_groups_in_the_order_of_the_families():
    every = [*ERM, *GOOD]
    marks = {"erm": Mark("erm", 1), "good": Mark("good", 0, family="merges")}
    table = build_rule_table("sources", tabulate(every), [], marks)
    groups = {name: [row.method.name for row in rows] for name, rows in table.groups.items()}
    assert groups == {"training": ["erm"], "merges": ["good"]}
    assert list(groups) == ["training", "merges"]


def test_columns_about_confidence_are_the_last():
    table = built(trusted(ERM, 0.1), trusted(GOOD, 0.3))
    trust = ["calibration error", "accuracy at 90 %"]
    assert list(table.columns)[-2:] == trust
    assert all(table.columns[name] for name in trust)
    assert [name for name in trust if table.columns[name].lower_is_better] == ["calibration error"]
    assert all(table.columns[name].confidence for name in trust)


def test_one_trial_has_no_spread():
    table = built(benchmark_records([[0.5, 0.6, 0.7]], method="vrex"))
    assert {cell.stderr for cell in table.rows[0].cells} == {""}


def test_a_missing_number_is_a_dash_and_sorts_last():
    table = built(ERM, GOOD[:4])
    row = next(row for row in table.rows if row.method.name == "good")
    assert dict(zip(table.columns, row.cells, strict=True))["art"].number != "–"
    none = built(ERM, GOOD[:2])
    assert [row.method.name for row in none.rows] == ["erm", "good"]
    last = none.rows[-1].cells[-1]
    assert (last.number, last.value) == ("–", "")


def test_a_table_is_incomplete_where_a_number_is_missing_that_every_run_has():
    assert not built(ERM, GOOD).incomplete
    assert built(ERM, GOOD[:2]).incomplete
    # Runs of an older version lack calibration errors.
    assert not built(trusted(ERM, 0.1), GOOD).incomplete


def test_verdicts_are_in_words():
    (row,) = built(ERM, GOOD).comparisons
    assert (row.method.name, row.verdict, row.tone) == ("good", "better", "good")
    assert built(ERM, GOOD, rule="target").oracle
