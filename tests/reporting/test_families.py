"""What kind of model a row is."""

from dataclasses import replace

from afield.reporting.results import group_records
from afield.reporting.sections import group_by_family, make_marks, row_family
from afield.reporting.table import tabulate
from tests.stores import benchmark_records, noisy, record

PLAIN = record("art", [0.5]).run


def test_every_run_has_the_family_of_what_made_its_model():
    merged = replace(PLAIN, method="score", role="merged", experts=("x",))
    assert row_family(PLAIN) == "training"
    assert row_family(replace(PLAIN, average="ema")) == "averages"
    assert row_family(merged) == "merges"
    assert row_family(replace(PLAIN, adaptation="tent")) == "adaptations"
    assert row_family(replace(merged, method="base")) == "references"
    assert row_family(replace(merged, method="target_expert")) == "references"


def test_marks_are_in_the_order_of_means_and_groups_in_that_of_families():
    every = benchmark_records(noisy(0.7, 2, 3))
    every += benchmark_records(noisy(0.8, 2, 3), method="score", role="merged", experts=("x",))
    (results,) = group_records(every)
    marks = make_marks(results, tabulate(every), "sources")
    assert list(marks) == ["score", "erm"]
    assert list(group_by_family(marks)) == ["training", "merges"]
