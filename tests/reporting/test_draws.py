"""What draws tell: which settings vary, and where their points lie."""

import pytest

from afield.reporting.charts.draws import best_checkpoint_accuracies, setting_panels, validated_runs
from afield.reporting.results import group_records
from tests.stores import record


def one(records):
    (found,) = group_records(records)
    return found


def test_settings_that_vary_have_a_panel_and_others_have_none():
    records = [
        record(
            "art",
            [0.5 + 0.1 * draw],
            draw=draw,
            lr=10.0**-draw,
            params={"kind": "ab"[draw], "fixed": 3},
        )
        for draw in range(2)
    ]
    panels = {panel.title: panel for panel in setting_panels(validated_runs(one(records)))["erm"]}
    assert set(panels) == {"lr", "kind"}
    assert [tick.text for tick in panels["kind"].x.ticks] == ["a", "b"]
    for panel in panels.values():
        assert [tick.text for tick in panel.y.ticks] == ["50", "55", "60"]
        assert [point.y for point in panel.points] == pytest.approx([0, 100])
    usual = [point.is_default for point in panels["lr"].points]
    assert usual == [True, False]
    texts = [point.tooltip for point in panels["lr"].points]
    assert texts == ["lr=1, trial 0, draw 0: 50.0 %", "lr=0.1, trial 0, draw 1: 60.0 %"]


def test_one_draw_has_no_settings_to_show():
    assert setting_panels(validated_runs(one([record("art", [0.5])]))) == {}


def test_where_a_run_is_best_in_validation_both_accuracies_are_known():
    assert best_checkpoint_accuracies(record("art", [0.2, 0.8, 0.6], [0.5, 0.9, 0.7])) == (0.9, 0.8)
