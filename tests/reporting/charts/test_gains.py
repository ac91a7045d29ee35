"""Gains over the reference on each domain."""

import math

import pytest

from afield.reporting.charts.axes import Mark
from afield.reporting.charts.forest_plot import gains_by_domain
from afield.reporting.results import group_records
from tests.stores import DOMAINS, benchmark_records, held_out


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
