"""Axes: all values have room, ticks are round, and places are right."""

import math

import numpy as np
import pytest

from afield.reporting.charts.axes import Mark, category_axis, numeric_axis
from afield.runs.row import FAMILIES


def test_every_value_lies_on_its_axis_and_ticks_are_few_and_in_order():
    for seed in range(20):
        generator = np.random.default_rng(seed)
        values = generator.normal(size=5) * 10.0 ** generator.integers(-6, 7)
        axis = numeric_axis(values.tolist(), log=False)
        places = [axis.to_percent(value) for value in values]
        assert all(0 <= place <= 100 for place in places), seed
        ticks = [tick.position for tick in axis.ticks]
        assert ticks == sorted(set(ticks)), seed
        assert 2 <= len(ticks) <= 9, seed
        assert (ticks[0], ticks[-1]) == (0.0, 100.0), seed


def test_places_are_in_proportion():
    axis = numeric_axis([0.0, 10.0])
    assert [axis.to_percent(value) for value in (0, 2.5, 10)] == [0.0, 25.0, 100.0]


def test_orders_of_magnitude_are_equally_wide_where_there_are_several():
    axis = numeric_axis([1e-4, 1e-2])
    assert axis.log
    assert axis.to_percent(1e-3) == 50.0
    assert [tick.text for tick in axis.ticks] == ["0.0001", "0.001", "0.01"]
    assert not numeric_axis([0.0, 1e-4, 1.0]).log


def test_equal_values_and_none_have_an_axis_all_the_same():
    for values in ([0.7], [0.7, 0.7], [0.0], [], [math.nan], [math.inf, 1.0]):
        axis = numeric_axis(values)
        assert axis.low < axis.high
        assert all(math.isfinite(tick.position) for tick in axis.ticks)


def test_ticks_may_have_a_sign_but_zero_never_has():
    texts = [tick.text for tick in numeric_axis([-0.9, 1.2], sign=True).ticks]
    assert texts == ["−1", "0", "+1", "+2"]


def test_words_have_places_side_by_side():
    axis = category_axis(["a", "b"])
    assert [(tick.text, tick.position) for tick in axis.ticks] == [("a", 25.0), ("b", 75.0)]
    assert axis.to_percent(0.5) == 25.0


@pytest.mark.parametrize(
    ("values", "options", "ends", "texts"),
    [
        ([61.0, 93.5], {}, (60, 100), "60 70 80 90 100"),
        ([0.0, 1.0], {}, (0, 1), "0 0.25 0.50 0.75 1.00"),
        ([0.0, 1.1], {}, (0, 1.5), "0 0.5 1.0 1.5"),
        ([-0.4, 0.3], {"sign": True}, (-0.4, 0.4), "−0.4 −0.2 0 +0.2 +0.4"),
        ([5.0, 5.0], {}, (4.8, 5.2), None),
        ([0.0], {}, (-0.025, 0.025), None),
        ([], {}, (0, 1), "0 0.25 0.50 0.75 1.00"),
        ([3.0, math.nan, math.inf, 7.0], {"ticks": 3}, (2, 8), "2 4 6 8"),
        ([0.1, 0.3], {"log": False, "ticks": 3}, (0.1, 0.3), "0.1 0.2 0.3"),
        ([0.0, 3.8], {}, (0, 4), "0 1 2 3 4"),
        ([0.0, 7.2], {}, (0, 8), "0 2 4 6 8"),
        ([0.0, 9.2], {}, (0, 10), "0 2.5 5.0 7.5 10.0"),
        ([0.0, 16.0], {}, (0, 20), "0 5 10 15 20"),
        ([0.0, 24.0], {}, (0, 30), "0 10 20 30"),
        ([1e-4, 0.3], {}, (1e-4, 1), "0.0001 0.001 0.01 0.1 1"),
        ([1e-9, 1e3], {}, (1e-9, 1e3), "1e-09 1e-06 0.001 1 1000"),
        ([20.0, 40_000.0], {}, (10, 1e5), "10 100 1000 1e4 1e5"),
    ],
)
def test_ends_and_ticks_are_round(values, options, ends, texts):
    axis = numeric_axis(values, **options)
    assert (axis.low, axis.high) == pytest.approx(ends)
    if texts is not None:
        assert [tick.text for tick in axis.ticks] == texts.split()
    assert axis.ticks[0].position == 0
    assert axis.ticks[-1].position == 100


def test_a_family_has_one_color_and_its_members_have_several_shapes():
    marks = [Mark(f, 0, family=f, place=place) for f in FAMILIES for place in range(64)]
    assert len({(mark.classes, mark.shape) for mark in marks}) == len(marks)
    assert {mark.color for mark in marks if mark.family == "merges"} == {2}


def test_categories_are_in_the_middle_of_their_part():
    axis = category_axis(["a", "b", "c", "d"])
    assert [(tick.position, tick.text) for tick in axis.ticks] == [
        (12.5, "a"),
        (37.5, "b"),
        (62.5, "c"),
        (87.5, "d"),
    ]
    assert (axis.low, axis.high) == (0, 4)
