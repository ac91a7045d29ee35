"""What may happen to a run: the others finish, the reason is named, a second start goes on."""

import os
import shutil
import subprocess
from functools import partial

import pytest

from afield.runs.pools.local import Local
from afield.runs.record import Failure, Record
from afield.runs.run_files import read_record
from afield.runs.store import Store
from afield.runs.sweep import complete
from afield.studies.planning import plan_run
from tests.files import other_package

TARGETS = ("turn0", "turn10", "turn20")


PLUGIN = '''
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
    other_package(tmp_path / "site", "methods", "failing", "failing:Failing", PLUGIN)
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
    runs = [plan_run("spirals", "failing", target=each, settings={"steps": 20}) for each in TARGETS]
    store = Store(tmp_path / "runs")
    outcomes = {outcome.run.key: outcome for outcome in complete(runs, store, pool=Local(2))}
    assert [type(outcomes[run.key]) for run in runs] == [Record, Failure, Record]
    assert [failure.error for failure in store.failures()] == [message]
    done = mtimes(store)
    fault.unlink()
    again = list(complete(runs, store))
    assert [type(outcome) for outcome in again] == [Record] * 3
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
