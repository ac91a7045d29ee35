"""Axes: all values have room, ticks are round, and places are right."""

import math

import numpy as np

from afield.reporting.axes import category_axis, numeric_axis


def test_every_value_lies_on_its_axis_and_ticks_are_few_and_in_order():
    for seed in range(20):
        generator = np.random.default_rng(seed)
        values = generator.normal(size=5) * 10.0 ** generator.integers(-6, 7)
        found = numeric_axis(values.tolist(), log=False)
        places = [found.to_percent(value) for value in values]
        assert all(0 <= place <= 100 for place in places), seed
        ticks = [tick.position for tick in found.ticks]
        assert ticks == sorted(set(ticks)), seed
        assert 2 <= len(ticks) <= 9, seed
        assert (ticks[0], ticks[-1]) == (0.0, 100.0), seed


def test_places_are_in_proportion():
    found = numeric_axis([0.0, 10.0])
    assert [found.to_percent(value) for value in (0, 2.5, 10)] == [0.0, 25.0, 100.0]


def test_orders_of_magnitude_are_equally_wide_where_there_are_several():
    found = numeric_axis([1e-4, 1e-2])
    assert found.log
    assert found.to_percent(1e-3) == 50.0
    assert [tick.text for tick in found.ticks] == ["0.0001", "0.001", "0.01"]
    assert not numeric_axis([0.0, 1e-4, 1.0]).log


def test_equal_values_and_none_have_an_axis_all_the_same():
    for values in ([0.7], [0.7, 0.7], [0.0], [], [math.nan], [math.inf, 1.0]):
        found = numeric_axis(values)
        assert found.low < found.high
        assert all(math.isfinite(tick.position) for tick in found.ticks)


def test_ticks_may_have_a_sign_but_zero_never_has():
    texts = [tick.text for tick in numeric_axis([-0.9, 1.2], sign=True).ticks]
    assert texts == ["−1", "0", "+1", "+2"]


def test_words_have_places_side_by_side():
    found = category_axis(["a", "b"])
    assert [(tick.text, tick.position) for tick in found.ticks] == [("a", 25.0), ("b", 75.0)]
    assert found.to_percent(0.5) == 25.0
