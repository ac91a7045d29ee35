"""The expected time of a benchmark, from measurements of a clock that the tests set."""

from types import SimpleNamespace

import pytest

from afield.runs import sweep as forecast
from afield.runs.sweep import expected_seconds
from afield.studies.benchmark import make_benchmark

SOURCES, TARGETS = 3, 4


@pytest.fixture
def clock(monkeypatch):
    """A clock in whose time a step takes 0.2 seconds per source, and an evaluation 5 seconds."""
    clock = SimpleNamespace(now=0.0)

    def evaluate(model):
        clock.now += 5.0

    def checkpoints(method, learner, average, stream, evaluate, *, steps, every):
        clock.now += 0.2 * len(stream.sources) * forecast.MEASURED
        yield evaluate(None)

    def set_up(run, machine):
        # The run takes the place of its batches.
        parts = {"method": None, "learner": None, "average": None, "stream": run}
        return SimpleNamespace(**parts, evaluations=SimpleNamespace(evaluate=evaluate))

    times = SimpleNamespace(monotonic=lambda: clock.now, perf_counter=lambda: clock.now)
    monkeypatch.setattr("afield.runs.sweep.time", times)
    monkeypatch.setattr("afield.runs.sweep.checkpoints", checkpoints)
    monkeypatch.setattr("afield.runs.sweep.set_up", set_up)
    return clock


def benchmark_runs(methods="erm", **options):
    options = {"trials": 1, "steps": 100, "settings": {"every": 10}, **options}
    return make_benchmark("spirals", methods, **options).runs()


# A run has 100 steps on three sources, and ten evaluations.
RUN = 100 * SOURCES * 0.2 + 10 * 5.0 + forecast.OVERHEAD


def test_the_expected_time_is_that_of_all_steps_and_evaluations(clock):
    assert expected_seconds(benchmark_runs(), workers=1) == pytest.approx(TARGETS * RUN)


def test_methods_that_are_not_measured_in_time_count_as_the_mean_of_the_others(clock):
    runs = benchmark_runs(["erm", "arith"])
    assert expected_seconds(runs, workers=1) == pytest.approx(2 * TARGETS * RUN)
    # Twice 1.8 seconds of steps and 5 seconds of an evaluation are above the budget.
    assert clock.now == pytest.approx(2 * (0.6 * forecast.MEASURED + 5.0))


def test_merged_models_take_an_evaluation(clock):
    runs = benchmark_runs([], merges=["average"])
    expected = forecast.OVERHEAD * len(runs)
    for run in runs:
        if run.is_derived:
            expected += 5.0
        else:
            expected += run.steps * len(run.sources) * 0.2 + run.steps / run.every * 5.0
    assert {run.is_derived for run in runs} == {True, False}
    assert expected_seconds(runs, workers=1) == pytest.approx(expected)


def test_more_runs_take_longer_and_more_workers_less(clock):
    few, many = (benchmark_runs(trials=trials) for trials in (1, 4))
    one = expected_seconds(many, workers=1)
    assert expected_seconds(many, workers=4) == pytest.approx(one / 4)
    assert expected_seconds(few, workers=1) == pytest.approx(one / 4)


def test_real_steps_and_evaluations_are_measured():
    runs = benchmark_runs(["erm", "arith"])
    assert expected_seconds(runs, workers=1) > len(runs) * forecast.OVERHEAD


def test_a_large_pretrained_network_is_not_measured(two_colours):
    settings = {"backbone": "timm:test_resnet", "weights": "none"}
    runs = make_benchmark(two_colours, "erm", trials=1, settings=settings).runs()
    assert expected_seconds(runs, workers=1) is None
