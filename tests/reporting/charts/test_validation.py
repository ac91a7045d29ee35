"""Does validation predict the test accuracy? Compared within a trial and unseen domain only."""

import numpy as np
import pytest

from afield.reporting.charts.validation import build_validation_plot, rank_correlation
from afield.reporting.draws import validated_runs
from afield.reporting.results import group_records
from tests.stores import DOMAINS, record


def one(records):
    (found,) = group_records(records)
    return found


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
    found = rank_correlation(list(by_case.values()))
    assert found.value == pytest.approx(expected)
    assert found.runs == 36


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
    assert build_validation_plot(one(records)).answer.startswith(start)


def test_points_are_relative_to_the_mean_of_their_trial_and_domain():
    plot = build_validation_plot(one(runs(1, methods=2, trials=1)))
    axis = plot.panel.x
    assert sorted({point.x for point in plot.panel.points}) == [
        axis.to_percent(-1.0),
        axis.to_percent(1.0),
    ]
    assert "validation 60.0 %, unseen 50.0 %" in plot.panel.points[0].tooltip


def test_merged_models_and_runs_alone_are_not_compared():
    merged = [record(t, [0.5], method="score", role="merged", experts=("x",)) for t in DOMAINS]
    assert build_validation_plot(one([record(t, [0.5]) for t in DOMAINS] + merged)) is None
