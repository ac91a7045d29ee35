"""The table of one rule as the page shows it."""

import pytest

from afield.reporting.charts.axes import Mark
from afield.reporting.comparison import comparisons
from afield.reporting.results import group_records
from afield.reporting.sections import build_rule_table
from afield.reporting.table import tabulate
from tests.stores import DOMAINS, benchmark_records, noisy, trusted


def built(*records, rule="sources"):
    every = [each for own in records for each in own]
    (results,) = group_records(every)
    marks = {name: Mark(name, number) for number, name in enumerate(results.methods)}
    best = ["good", "fair"]
    return build_rule_table(rule, tabulate(every), comparisons(results, rule), marks, best)


ERM = benchmark_records(noisy(0.7, 3, 3, seed=1))
GOOD = benchmark_records(noisy(0.8, 3, 3, seed=2), method="good")


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
    cells = dict(zip(table.columns, row.cells, strict=True))
    assert cells["art"].number != "–"
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
