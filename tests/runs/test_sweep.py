"""Many runs: nothing is done twice, nothing is lost, no failure stops the others."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest

from afield import registry
from afield.runs import sweep as forecast
from afield.runs.pools.local import Local
from afield.runs.record import Failure, Record
from afield.runs.run import Run
from afield.runs.run_files import read_record
from afield.runs.runner import execute
from afield.runs.store import BusyError, Store
from afield.runs.sweep import complete, expected_seconds, sort_outcomes
from afield.studies.benchmark import make_benchmark
from afield.studies.planning import plan_run
from tests.files import other_package

TARGETS = ("turn0", "turn10", "turn20", "turn30")


def runs_of(*, steps=10, methods=("erm",), **settings):
    return [
        plan_run("spirals", method, target=target, settings={"steps": steps, **settings})
        for target in TARGETS
        for method in methods
    ]


def test_every_run_gets_its_record_in_the_order_asked(tmp_path):
    runs = runs_of(methods=("erm", "vrex"))
    result = sort_outcomes(runs, complete(runs, Store(tmp_path)))
    assert [record.run for record in result] == runs


def test_a_second_start_does_only_what_is_missing(tmp_path):
    runs, store = runs_of(), Store(tmp_path)
    list(complete(runs[:3], store))
    times = {run.key: (store.folder(run) / "record.json").stat().st_mtime_ns for run in runs[:3]}
    assert len(list(complete(runs, store))) == 4
    for run in runs[:3]:
        assert (store.folder(run) / "record.json").stat().st_mtime_ns == times[run.key]


def test_one_bad_run_does_not_stop_the_others(store):
    bad, *good = runs_of()
    bad = plan_run("spirals", "erm", target="turn0", settings={"steps": 10, "lr": 1e30})
    result = sort_outcomes([bad, *good], complete([bad, *good], store))
    assert [type(outcome) for outcome in result] == [Failure, Record, Record, Record]
    assert "ERM at step" in result[0].error
    assert "smaller lr" in result[0].error
    assert "Traceback" in result[0].trace
    assert [failure.run for failure in store.failures()] == [bad]


def test_a_failure_that_is_not_ours_keeps_its_kind_and_is_tried_again(tmp_path, monkeypatch):
    run, store = runs_of()[0], Store(tmp_path)
    with monkeypatch.context() as broken:
        broken.setattr("afield.runs.runner.checkpoints", lambda *_, **__: 1 / 0)
        (failure,) = complete([run], store)
    assert failure.error == "ZeroDivisionError: division by zero"
    (record,) = complete([run], store)
    assert isinstance(record, Record)
    assert store.failures() == []


def test_a_run_that_another_process_is_at_is_waited_for(tmp_path, monkeypatch):
    """The first try finds it claimed; it is done by the time of the second."""
    runs, store = runs_of()[:2], Store(tmp_path)
    tries = []

    def busy_at_first(run, store, *, wait, **options):
        tries.append((run, wait))
        if run == runs[0] and not wait:
            raise BusyError(run.key)
        return execute(run, store, wait=wait, **options)

    monkeypatch.setattr("afield.runs.sweep.execute", busy_at_first)
    assert len(list(complete(runs, store))) == 2
    assert tries == [(runs[0], False), (runs[1], False), (runs[0], True)]


PLUGIN = '''
"""Erm that writes down when it starts."""
import os
from dataclasses import dataclass
from afield.training.methods.erm import ERM

@dataclass(frozen=True)
class Noted(ERM):
    def setup(self, model, task):
        with open(os.environ["NOTES"], "a") as notes:
            notes.write(",".join(task.sources) + "\\n")
        return super().setup(model, task)
'''
SWEEP = """
import sys
from tests.protocols import leave_one_out
from afield.data.lookup import find_dataset
from afield.runs.store import Store
from afield.runs.sweep import complete

runs = leave_one_out(find_dataset("spirals"), ["noted"], trials=3, settings={"steps": 60})
outcomes = list(complete(runs, Store(sys.argv[1])))
print(len(outcomes), {type(outcome).__name__ for outcome in outcomes})
"""


@pytest.mark.slow
def test_two_starts_at_the_same_time_do_no_run_twice(tmp_path):
    (tmp_path / "site").mkdir()
    other_package(tmp_path / "site", "methods", "noted", "noted:Noted", PLUGIN)
    notes = tmp_path / "notes.txt"
    paths = os.pathsep.join([str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": paths, "NOTES": str(notes)}
    command = [sys.executable, "-c", SWEEP, tmp_path / "runs"]
    starts = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = [start.communicate(timeout=600)[0].strip() for start in starts]
    assert said == ["12 {'Record'}"] * 2
    assert len(notes.read_text().splitlines()) == 12
    assert len(list(Store(tmp_path / "runs"))) == 12


def test_records_of_code_that_has_changed_since_are_reported(tmp_path, monkeypatch, caplog):
    runs, store = runs_of()[:1], Store(tmp_path)
    list(complete(runs, store))
    list(complete(runs, store))
    assert "changed" not in caplog.text
    monkeypatch.setattr("afield.registry._source", lambda kind, name: "another = 1")
    registry._builtin_digest.cache_clear()
    list(complete(runs, store))
    registry._builtin_digest.cache_clear()
    assert "erm: its code has changed" in caplog.text


def staged() -> dict[str, Run]:
    """A base, an expert of it and a merged run of that, by their roles."""
    first = plan_run("spirals", "erm", target="turn0", settings={"steps": 5})
    base = replace(first, role="base")
    expert = replace(first, role="expert", base=base.key)
    merged = replace(expert, method="average", role="merged", experts=(expert.key,) * 2)
    return {run.role: run for run in (base, expert, merged)}


def test_what_starts_from_others_comes_after_them_however_they_are_asked(tmp_path):
    runs = staged()
    result = list(complete(list(runs.values())[::-1], Store(tmp_path)))
    assert [outcome.run.role for outcome in result] == ["base", "expert", "merged"]
    assert all(isinstance(outcome, Record) for outcome in result)
    assert [o.run.role for o in sort_outcomes(list(runs.values())[::-1], result)] == [
        *("merged", "expert", "base")
    ]


def test_what_starts_from_a_run_that_another_process_is_at_waits_for_it(tmp_path, monkeypatch):
    runs, tries = staged(), []

    def busy_at_first(run, store, *, wait, **options):
        tries.append((run.role, wait))
        if run.role == "base" and not wait:
            raise BusyError(run.key)
        return execute(run, store, wait=wait, **options)

    monkeypatch.setattr("afield.runs.sweep.execute", busy_at_first)
    result = list(complete(list(runs.values()), Store(tmp_path)))
    assert all(isinstance(outcome, Record) for outcome in result)
    steps = [("base", False), ("base", True), ("expert", False), ("merged", False)]
    assert tries == steps


FAULT_TARGETS = ("turn0", "turn10", "turn20")
FAILING = '''
"""Erm that comes to a bad end when it leaves turn10 out, as long as a file is there."""
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from afield.training.methods.erm import ERM

@dataclass(frozen=True)
class Failing(ERM):
    def update(self, learner, batches):
        if learner.step == 5 and "turn10" not in learner.task.sources:
            fault = Path(os.environ["FAULT"])
            if fault.exists() and fault.read_text() == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if fault.exists():
                raise ZeroDivisionError("so it is")
        return super().update(learner, batches)
'''


@pytest.fixture
def fault(monkeypatch, tmp_path):
    """The file that says what happens to one of the runs of the method ``failing``."""
    (tmp_path / "site").mkdir()
    other_package(tmp_path / "site", "methods", "failing", "failing:Failing", FAILING)
    others = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'site'}{os.pathsep}{others}")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setenv("FAULT", str(tmp_path / "fault"))
    return tmp_path / "fault"


def mtimes(store):
    return {path.parent.name: path.stat().st_mtime_ns for path in store.root.glob("*/record.json")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("raises", "ZeroDivisionError: so it is"),
        ("killed", "the process was killed (out of memory?)"),
    ],
)
def test_a_run_that_comes_to_a_bad_end_takes_no_other_with_it(kind, message, fault, tmp_path):
    fault.write_text(kind)
    runs = [
        plan_run("spirals", "failing", target=each, settings={"steps": 20})
        for each in FAULT_TARGETS
    ]
    store = Store(tmp_path / "runs")
    outcomes = {outcome.run.key: outcome for outcome in complete(runs, store, pool=Local(2))}
    assert [type(outcomes[run.key]) for run in runs] == [Record, Failure, Record]
    assert [failure.error for failure in store.failures()] == [message]
    done = mtimes(store)
    fault.unlink()
    assert [type(outcome) for outcome in list(complete(runs, store))] == [Record] * 3
    assert store.failures() == []
    assert {key: mtimes(store)[key] for key in done} == done


def test_a_run_that_diverges_takes_no_other_with_it(store):
    lrs = (1e-3, 1e30, 1e-2)
    runs = [
        plan_run("spirals", "erm", target="turn0", settings={"steps": 20, "lr": x}) for x in lrs
    ]
    outcomes = {outcome.run.lr: outcome for outcome in complete(runs, store)}
    assert [type(outcomes[lr]) for lr in lrs] == [Record, Failure, Record]
    assert "smaller lr" in store.failures()[0].error
    before = mtimes(store)
    assert sum(isinstance(outcome, Record) for outcome in complete(runs, store)) == 2
    assert mtimes(store) == before


@pytest.fixture
def small_disk(tmp_path):
    """A file system with room for little."""
    place = tmp_path / "small"
    place.mkdir()
    if shutil.which("mount") is None or os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    command = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(place)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no small file system can be mounted here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_run_that_fills_the_disk_takes_no_other_with_it(small_disk):
    """The weights of the wide network have no room, those of the others have."""
    ask = partial(plan_run, "spirals", "erm", target="turn0")
    large = plan_run("rotated_digits", "erm", target="0deg", settings={"steps": 4})
    small = [ask(settings={"steps": 4, "batch": batch}) for batch in (8, 16)]
    store = Store(small_disk)
    runs = [small[0], large, small[1]]
    outcomes = {outcome.run.key: outcome for outcome in complete(runs, store)}
    assert [type(outcomes[run.key]) for run in runs] == [Record, Failure, Record]
    assert "No space left on device" in outcomes[large.key].error
    assert not list(small_disk.rglob("*.part"))
    assert not (store.folder(large) / "record.json").exists()
    assert [read_record(store.folder(run)).run for run in small] == small
    before = mtimes(store)
    assert isinstance(list(complete(runs, store))[-1], Failure)
    assert mtimes(store) == before


SOURCES, TARGET_COUNT = 3, 4


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
    assert expected_seconds(benchmark_runs(), workers=1) == pytest.approx(TARGET_COUNT * RUN)


def test_methods_that_are_not_measured_in_time_count_as_the_mean_of_the_others(clock):
    runs = benchmark_runs(["erm", "arith"])
    assert expected_seconds(runs, workers=1) == pytest.approx(2 * TARGET_COUNT * RUN)
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
