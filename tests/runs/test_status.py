"""The progress of a benchmark, read from its store alone."""

import os
import shutil
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from afield.compute import hostname
from afield.runs.record import Failure, Plan, Progress
from afield.runs.runner import execute
from afield.runs.status import PlanWatcher, plan_status, statuses
from afield.runs.store import Store
from afield.studies.planning import plan_run

TARGETS = ("turn0", "turn10", "turn20", "turn30")
# No process has this number: it is above what Linux gives.
NOBODY = 2**22 + 1


@pytest.fixture
def runs():
    return [plan_run("spirals", "erm", target=each, settings={"steps": 10}) for each in TARGETS]


def plan_of(runs, **changes):
    keys = tuple(run.key for run in runs)
    return replace(Plan(keys, 0, "afield bench", hostname(), os.getpid(), time.time()), **changes)


def begin(store, run, *, step=5, pid=None):
    with store.claim(run):
        store.put_progress(
            Progress(run, ("turn0",), step, 1.0, hostname(), pid or os.getpid(), 0.5)
        )


def test_every_run_is_counted_once(store, runs):
    execute(runs[0], store)
    begin(store, runs[1])
    plan = plan_of(runs)
    store.put_failure(Failure(runs[2], "no luck", ""))
    status = plan_status(store, plan)
    assert (status.total, status.done, status.remaining) == (4, 1, 2)
    assert [each.run for each in status.running] == [runs[1]]
    assert [each.run for each in status.failed] == [runs[2]]
    assert status.stopped == ()
    assert status.process_alive is True


def test_runs_of_other_plans_do_not_count(store, runs):
    execute(runs[0], store)
    begin(store, runs[1])
    status = plan_status(store, plan_of(runs[2:]))
    assert (status.done, status.running, status.remaining) == (0, (), 2)


def test_a_run_whose_process_is_gone_has_stopped(store, runs):
    begin(store, runs[0], pid=NOBODY)
    status = plan_status(store, plan_of(runs, pid=NOBODY))
    assert [each.run for each in status.stopped] == [runs[0]]
    assert status.running == ()
    assert status.process_alive is False


def test_of_another_machine_nothing_is_known(tmp_path, runs):
    assert plan_status(Store(tmp_path), plan_of(runs, host="elsewhere")).process_alive is None


def test_a_finished_or_failed_run_is_no_longer_under_way(store, runs):
    begin(store, runs[0])
    execute(runs[0], store)
    begin(store, runs[1])
    store.put_failure(Failure(runs[1], "no luck", ""))
    assert store.progress() == []


def test_what_failed_before_is_done_again_and_neither_failed_nor_done_until_then(store, runs):
    for run in runs[:3]:
        store.put_failure(Failure(run, "no luck", ""))
    plan = plan_of(runs)
    assert (plan_status(store, plan).failed, plan_status(store, plan).remaining) == ((), 4)
    assert not plan_status(store, plan).has_started
    begin(store, runs[0])
    assert [each.run for each in plan_status(store, plan).running] == [runs[0]]
    store.put_failure(Failure(runs[1], "no luck again", ""))
    status = plan_status(store, plan)
    assert [each.error for each in status.failed] == ["no luck again"]
    assert status.remaining == 3


def test_a_watcher_reads_what_changed_in_its_own_runs_only(tmp_path, runs, monkeypatch):
    store, looked = Store(tmp_path), []
    execute(runs[0], store)
    watcher = PlanWatcher(store, plan_of(runs[:3]))
    assert (watcher.read().done, watcher.read().remaining) == (1, 2)
    begin(store, runs[1])
    begin(store, runs[3])
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: looked.append(path) or access(path, mode))
    assert [each.run for each in watcher.read().running] == [runs[1]]
    # Neither the finished run, nor one without a folder, nor one of another plan.
    assert {path.split("/")[-2] for path in looked} == {runs[1].key}
    execute(runs[1], store)
    store.put_failure(Failure(runs[2], "no luck", ""))
    status = watcher.read()
    assert (status.done, status.remaining, status.running) == (2, 0, ())
    assert [each.error for each in status.failed] == ["no luck"]
    store.put_failure(Failure(runs[2], "no luck again", ""))
    assert [each.error for each in watcher.read().failed] == ["no luck again"]
    shutil.rmtree(tmp_path / runs[0].key)
    assert watcher.read().done == 1
    assert watcher.read() == plan_status(store, watcher.plan)


def test_a_run_says_how_far_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr("afield.runs.runner.PROGRESS_SECONDS", 0.0)
    run = plan_run("spirals", "erm", target="turn0", settings={"steps": 20, "every": 5})
    store, seen = Store(tmp_path), []

    def watch(*_):
        (progress,) = store.progress()
        seen.append((progress.step, progress.unseen, progress.accuracy))

    record = execute(run, store, watch=watch)
    assert [step for step, _, _ in seen] == [5, 10, 15, 20]
    assert {unseen for _, unseen, _ in seen} == {("turn0",)}
    probes = [
        sum(each.scores[source].probe.accuracy for source in run.sources) / len(run.sources)
        for each in record.checkpoints
    ]
    assert [accuracy for _, _, accuracy in seen] == pytest.approx(probes)


def test_the_time_left_follows_from_what_was_done_since_the_start(store, runs, monkeypatch):
    monkeypatch.setattr("afield.runs.status.time", SimpleNamespace(time=lambda: 1030.0))
    assert plan_status(store, plan_of(runs)).left is None
    execute(runs[0], store)
    execute(runs[1], store)
    begin(store, runs[2], step=5)
    # One was known: in 30 s there were one and a half, and one and a half are left.
    status = plan_status(store, plan_of(runs, known=1, started=1000.0))
    assert status.left == pytest.approx(30)


def test_the_latest_plan_is_last_and_the_same_plan_is_one(store, tmp_path, runs):
    for plan in (
        plan_of(runs[:2], started=2.0),
        plan_of(runs, started=1.0),
        plan_of(runs, started=3.0),
    ):
        store.put_plan(plan)
    assert [status.plan.started for status in statuses(store)] == [2.0, 3.0]
    names = [path.stem for path in (tmp_path / "plans").glob("*.json")]
    assert [len(name) for name in names] == [16, 16]


def test_memory_in_use_is_in_the_record(tmp_path, runs):
    record = execute(runs[0], Store(tmp_path))
    assert 50e6 < record.memory < 50e9
    assert Store(tmp_path).get(runs[0]).memory == record.memory
