"""Many runs: nothing is done twice, nothing is lost, no failure stops the others."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from afield import registry
from afield.runs.record import Failure, Record
from afield.runs.run import Run
from afield.runs.runner import execute
from afield.runs.store import BusyError, Store
from afield.runs.sweep import complete, sort_outcomes
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
found = list(complete(runs, Store(sys.argv[1])))
print(len(found), {type(outcome).__name__ for outcome in found})
"""


@pytest.mark.slow
def test_two_starts_at_the_same_time_do_no_run_twice(tmp_path):
    (tmp_path / "site").mkdir()
    other_package(tmp_path / "site", "methods", "noted", "noted:Noted", PLUGIN)
    (tmp_path / "sweep.py").write_text(SWEEP)
    notes = tmp_path / "notes.txt"
    paths = os.pathsep.join([str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": paths, "NOTES": str(notes)}
    command = [sys.executable, tmp_path / "sweep.py", tmp_path / "runs"]
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
