"""What draws tell: which settings vary, and where their points lie."""

from types import SimpleNamespace

import numpy as np
import pytest

from afield.reporting.charts.draws import (
    best_checkpoint_accuracies,
    build_validation_plot,
    rank_correlation,
    setting_panels,
    validated_runs,
)
from afield.reporting.results import group_records
from tests.stores import DOMAINS, record


def one(records):
    (group,) = group_records(records)
    return group


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


def runs(slope, *, methods=4, trials=3, noise=0.0):
    """Validation differs by method; the unseen accuracy follows it with a slope."""
    generator = np.random.default_rng(0)
    return [
        record(
            target,
            [0.5 + 0.1 * place + slope * 0.02 * number + noise * generator.normal()],
            [0.6 - 0.1 * place + 0.02 * number],
            trial=trial,
            method=f"m{number}",
        )
        for place, target in enumerate(DOMAINS)
        for trial in range(trials)
        for number in range(methods)
    ]


@pytest.mark.parametrize(("slope", "expected"), [(1, 1.0), (-1, -1.0)])
def test_differences_between_domains_do_not_count(slope, expected):
    by_case = {}
    for run in validated_runs(one(runs(slope))):
        by_case.setdefault((run.record.run.trial, run.target), []).append(run)
    result = rank_correlation(list(by_case.values()))
    assert result.value == pytest.approx(expected)
    assert result.runs == 36


def test_the_interval_is_fishers_with_a_mean_removed_from_every_group():
    """Two runs of each of two groups swap their places; five degrees of freedom are the least."""

    def correlated(sizes):
        groups = [
            [
                SimpleNamespace(validation=place, accuracy={0: 1, 1: 0}.get(place, place))
                for place in range(size)
            ]
            for size in sizes
        ]
        return rank_correlation(groups)

    for sizes, freedom in (((8,), 5), ((6, 6), 8)):
        correlation = correlated(sizes)
        values = [np.arange(size) for size in sizes]
        ranks = [np.array([1, 0, *range(2, size)]) for size in sizes]
        x, y = (
            np.concatenate([(each - each.mean()) / len(each) for each in side])
            for side in (values, ranks)
        )
        assert correlation.value == pytest.approx(np.corrcoef(x, y)[0, 1])
        reach = 1.96 * np.sqrt(1.06 / freedom)
        middle = np.arctanh(correlation.value)
        ends = np.tanh([middle - reach, middle + reach])
        assert (correlation.low, correlation.high) == pytest.approx(tuple(ends))
        assert correlation.runs == sum(sizes)
    assert np.isnan([correlated((7,)).low, correlated((4, 4)).high]).all()


@pytest.mark.parametrize(
    ("records", "start"),
    [
        (runs(1), "Yes: the rank correlation is +1.00"),
        (runs(-1), "No, runs that validate better do worse"),
        (runs(0, noise=0.05), "Cannot tell: the rank correlation is"),
        (runs(1, methods=3, trials=1), "Cannot tell from 9 runs."),
    ],
)
def test_the_answer_is_a_sentence(records, start):
    assert build_validation_plot(validated_runs(one(records))).answer.startswith(start)


def test_points_are_relative_to_the_mean_of_their_trial_and_domain():
    plot = build_validation_plot(validated_runs(one(runs(1, methods=2, trials=1))))
    axis = plot.panel.x
    assert sorted({point.x for point in plot.panel.points}) == [
        axis.to_percent(-1.0),
        axis.to_percent(1.0),
    ]
    assert "validation 60.0 %, unseen 50.0 %" in plot.panel.points[0].tooltip


def test_merged_models_and_runs_alone_are_not_compared():
    merged = [record(t, [0.5], method="score", role="merged", experts=("x",)) for t in DOMAINS]
    runs_of_all = validated_runs(one([record(t, [0.5]) for t in DOMAINS] + merged))
    assert build_validation_plot(runs_of_all) is None
