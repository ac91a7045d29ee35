"""Worst classes and the confusion matrix of one method."""

from dataclasses import replace

import pytest

from afield.reporting.charts.samples import class_errors
from afield.reporting.results import group_records
from afield.training.scores import Confusion
from tests.stores import benchmark_records

# Class a is always right; half of class b is taken for a.
HALF = Confusion(2, cells=(0, 2, 3), counts=(10, 4, 4))


def confused(records, confusion=HALF, **fields):
    def with_matrix(record):
        points = tuple(
            replace(
                point,
                scores={
                    name: replace(each, main=replace(each.main, confusion=confusion))
                    if each.main
                    else each
                    for name, each in point.scores.items()
                },
            )
            for point in record.checkpoints
        )
        return replace(record, checkpoints=points, **fields)

    (results,) = group_records([with_matrix(record) for record in records])
    return class_errors(results, "sources", "erm")


def test_counts_of_all_trials_and_domains_are_added():
    found = confused(benchmark_records([[0.5] * 3] * 2), class_names=("a", "b"))
    (worst,) = found.worst
    assert (worst.name, worst.accuracy, worst.samples) == ("b", 0.5, 6 * 8)
    assert (worst.taken_for, worst.share) == ("a", 0.5)
    assert found.shares == [[1.0, 0.0], [0.5, 0.5]]


def test_without_names_classes_are_numbered():
    assert list(confused(benchmark_records([[0.5] * 3])).names) == ["class 0", "class 1"]


@pytest.mark.parametrize(
    "confusion", [None, Confusion(2, samples=(1, 1), predictions=(1, 1), hits=(1, 1))]
)
def test_without_matrices_there_is_nothing_to_show(confusion):
    assert confused(benchmark_records([[0.5] * 3]), confusion) is None
