"""What draws tell: points at the right places, and correlation among draws only."""

import pytest

from afield.reporting.draws import (
    best_checkpoint_accuracies,
    setting_panels,
    validation_panels,
    validation_rank_correlation,
)
from afield.reporting.results import group_records
from tests.stores import DOMAINS, held_out, record


def one(records):
    (found,) = group_records(records)
    return found


def drawn(pairs, **fields):
    """A record for each draw: best in validation, and unseen accuracy there."""
    return [
        record("art", [away], [home], draw=draw, lr=1e-3 * (draw + 1), **fields)
        for draw, (home, away) in enumerate(pairs)
    ]


def test_a_point_lies_where_the_run_is_best_in_validation():
    (panel,) = validation_panels(one([record("art", [0.2, 0.8, 0.4], [0.5, 0.9, 0.6])]))
    (point,) = panel.points
    assert panel.title == "art"
    assert panel.x.to_percent(90.0) == point.x
    assert panel.y.to_percent(80.0) == point.y
    assert point.is_default
    assert "validation 90.0 %, unseen 80.0 %" in point.tooltip


def test_every_unseen_domain_has_a_panel_on_the_same_axes():
    panels = validation_panels(one([record(t, [0.2 * n], [0.5]) for n, t in enumerate(DOMAINS)]))
    assert [panel.title for panel in panels] == list(DOMAINS)
    assert len({(panel.y.low, panel.y.high) for panel in panels}) == 1


def test_many_domains_share_one_panel():
    names = tuple(f"d{n:02}" for n in range(20))
    panels = validation_panels(one([record(t, [0.5], domains=names) for t in names]))
    assert [len(panel.points) for panel in panels] == [20]
    (panel,) = validation_panels(one([held_out("erm", [0.5, 0.7])]))
    assert len(panel.points) == 1


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [([(0.5, 0.1), (0.6, 0.2), (0.7, 0.3)], 1.0), ([(0.5, 0.3), (0.6, 0.2), (0.7, 0.1)], -1.0)],
)
def test_agreement_is_a_rank_correlation_among_draws(pairs, expected):
    assert validation_rank_correlation(one(drawn(pairs))) == pytest.approx(expected)


def test_differences_between_targets_are_not_agreement():
    # Across targets validation and unseen accuracy rise together; among draws they do not.
    records = [
        record(target, [level - 0.01 * draw], [level + 0.01 * draw], draw=draw)
        for level, target in zip((0.3, 0.5, 0.7), DOMAINS, strict=True)
        for draw in range(3)
    ]
    assert validation_rank_correlation(one(records)) == pytest.approx(-1.0)


def test_two_draws_or_equal_values_tell_nothing():
    assert validation_rank_correlation(one(drawn([(0.5, 0.1), (0.6, 0.2)]))) is None
    assert validation_rank_correlation(one(drawn([(0.5, 0.1), (0.5, 0.2), (0.5, 0.3)]))) is None


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
    panels = {panel.title: panel for panel in setting_panels(one(records))["erm"]}
    assert set(panels) == {"lr", "kind"}
    assert [tick.text for tick in panels["kind"].x.ticks] == ["a", "b"]
    usual = [point.is_default for point in panels["lr"].points]
    assert usual == [True, False]


def test_one_draw_has_no_settings_to_show():
    assert setting_panels(one([record("art", [0.5])])) == {}


def test_where_a_run_is_best_in_validation_both_accuracies_are_known():
    assert best_checkpoint_accuracies(record("art", [0.2, 0.8, 0.6], [0.5, 0.9, 0.7])) == (0.9, 0.8)


def test_the_expert_of_the_target_is_in_no_panel():
    rows = [record("art", [0.5], [0.5]), record("art", [0.9], [0.9], method="target_expert")]
    (panel,) = validation_panels(one(rows))
    assert [point.method for point in panel.points] == ["erm"]
