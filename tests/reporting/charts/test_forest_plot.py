"""The picture of the headline: dots and bars where the numbers are."""

import math

import pytest

from afield.reporting.charts.axes import Mark
from afield.reporting.charts.forest_plot import build_forest_plot, gains_by_domain
from afield.reporting.comparison import comparisons
from afield.reporting.results import group_records
from afield.reporting.table import tabulate
from tests.stores import DOMAINS, benchmark_records, held_out, noisy


def drawn(*records, best="good"):
    every = [each for own in records for each in own]
    (benchmark,) = group_records(every)
    return build_forest_plot(tabulate(every), "sources", comparisons(benchmark, "sources"), best)


ERM = benchmark_records(noisy(0.7, 3, 3, seed=1))
ERM_STEADY = benchmark_records(noisy(0.7, 3, 3, seed=1, spread=0.005))
GOOD = benchmark_records(noisy(0.8, 3, 3, seed=2), method="good")
BAD = benchmark_records(noisy(0.6, 3, 3, seed=3), method="bad")


def test_differences_stand_on_an_axis_with_the_reference_at_zero():
    plot = drawn(ERM, GOOD, BAD)
    good, bad = plot.rows
    assert (good.name, good.tone, bad.name, bad.tone) == ("good", "first", "bad", "")
    assert bad.low < bad.at < bad.high < plot.zero < good.low < good.at < good.high
    assert plot.axis.to_percent(0.0) == plot.zero
    assert good.value.startswith("+")
    assert " to +" in good.range


def test_an_outlier_is_clipped_and_does_not_squeeze_the_rest():
    awful = benchmark_records(noisy(0.1, 3, 3, seed=4, spread=0.01), method="awful")
    close = benchmark_records(noisy(0.72, 3, 3, seed=5, spread=0.005), method="close")
    plot = drawn(ERM_STEADY, awful, close, best="close")
    rows = {row.name: row for row in plot.rows}
    assert (rows["awful"].clipped, rows["awful"].at) == ("low", 0.0)
    assert rows["awful"].value.startswith("−6")
    assert rows["close"].clipped == ""
    assert plot.axis.low > -40


def test_a_bar_that_goes_on_beyond_the_axis_ends_at_its_edge():
    wide = benchmark_records(noisy(0.5, 3, 3, seed=4, spread=0.2), method="wide")
    close = benchmark_records(noisy(0.72, 3, 3, seed=5, spread=0.005), method="close")
    near = benchmark_records(noisy(0.71, 3, 3, seed=6, spread=0.005), method="near")
    rows = {row.name: row for row in drawn(ERM_STEADY, wide, close, near, best="close").rows}
    assert rows["wide"].low == 0.0
    assert 0.0 < rows["close"].low < rows["close"].high < 100.0


def test_what_is_a_little_off_is_not_clipped():
    assert {row.clipped for row in drawn(ERM, GOOD, BAD).rows} == {""}


def test_without_intervals_the_caption_says_so():
    erm, good = (benchmark_records([[0.7, 0.6, 0.8]], method=name) for name in ("erm", "good"))
    assert "bars are 95 % intervals" in drawn(ERM, GOOD).caption
    assert drawn(erm, good).caption.endswith("too few results for intervals")


def test_several_references_are_reported():
    assert "minus that of erm, in" in drawn(ERM, GOOD).caption
    small = {"given": {"batch": 8}, "batch": 8}
    plot = drawn(
        ERM,
        GOOD,
        benchmark_records(noisy(0.7, 3, 3), **small),
        benchmark_records(noisy(0.8, 3, 3), method="good", **small),
    )
    assert "minus that of erm with the same settings" in plot.caption


def test_without_a_reference_means_are_shown():
    plot = drawn(GOOD, BAD)
    assert [row.name for row in plot.rows] == ["good", "bad"]
    assert plot.zero is None
    assert plot.rows[0].at == pytest.approx(plot.axis.to_percent(80.0), abs=10)
    assert plot.rows[0].range.startswith("±")


def test_one_trial_has_no_bars_and_what_has_seen_the_target_no_row():
    bound = benchmark_records([[0.9] * 3], method="target_expert", role="merged", experts=("x",))
    plot = drawn(benchmark_records([[0.5, 0.6, 0.7]], method="vrex"), bound)
    assert [(row.name, row.low, row.high, row.range) for row in plot.rows] == [
        ("vrex", None, None, "")
    ]


def test_without_a_mean_there_is_no_picture():
    assert drawn(GOOD[:2]) is None


def gains(results, rule):
    marks = {name: Mark(name, number) for number, name in enumerate(results.methods)}
    return gains_by_domain(results, rule, marks)


def test_a_gain_is_the_mean_difference_on_the_same_trials():
    erm = benchmark_records([[0.5, 0.5, 0.5], [0.6, 0.5, 0.5]])
    good = benchmark_records([[0.6, 0.5, 0.1], [0.7, 0.5, 0.9]], method="good")
    (results,) = group_records(erm + good)
    table = gains(results, "sources")
    assert table.domains == list(DOMAINS)
    (row,) = table.rows
    assert [gain.difference for gain in row.gains] == pytest.approx([0.1, 0.0, 0.0], abs=1e-9)
    assert [gain.tone for gain in row.gains] == ["good", "", ""]


def test_a_domain_that_was_not_run_has_no_gain():
    (results,) = group_records(
        benchmark_records([[0.5] * 3]) + benchmark_records([[0.6] * 3], method="good")[:2]
    )
    (row,) = gains(results, "sources").rows
    assert [math.isnan(gain.difference) for gain in row.gains] == [False, False, True]


def test_where_many_domains_are_held_out_there_is_no_table():
    (results,) = group_records([held_out(name, [0.5, 0.6]) for name in ("erm", "good")])
    assert gains(results, "validation") is None
