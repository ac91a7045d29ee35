"""Slurm: an array job does what is missing, each run once; the bytes are those of local runs."""

import subprocess
import time
from dataclasses import replace

import pytest

from afield.compute import hostname
from afield.errors import SpecError
from afield.runs.pool import make_pool
from afield.runs.pools.slurm import active_tasks, describe_tasks
from afield.runs.record import Plan
from afield.runs.runner import execute
from afield.runs.store import Store
from afield.runs.work import put_plan
from afield.studies.planning import plan_run
from tests.runs.interruption import outcome
from tests.waiting import wait_until

TARGETS = ("turn0", "turn10", "turn20")


def plan_of(runs, known=0):
    keys = tuple(run.key for run in runs)
    return Plan(keys, known, "afield bench", hostname(), 1, time.time())


@pytest.fixture
def plan():
    return Plan(("a", "b", "c"), 0, "afield bench", "host", 1, 2.0)


def test_the_script_has_no_more_tasks_than_there_are_missing_runs(store, plan):
    pool = make_pool("slurm:partition=gpu,time=8:00:00,gpus=1,array=50", threads=2)
    lines = pool.write_script(store, plan).splitlines()
    assert lines[0] == "#!/bin/bash"
    wanted = ("partition=gpu", "time=8:00:00", "gpus=1", "cpus-per-task=2", "array=0-2", "requeue")
    assert {f"#SBATCH --{each}" for each in wanted} <= set(lines)
    assert lines[-1].endswith(f"work {store.root.absolute()}")
    assert "#SBATCH --array=0-1" in pool.script(store, replace(plan, known=1))
    assert "#SBATCH --array=0-3" in make_pool("slurm:array=4").script(
        store, replace(plan, keys=tuple("abcdefgh"))
    )
    # The folder of the logs has to exist when the tasks start.
    assert (store.root / "slurm" / f"{plan.number}.sh").read_text().splitlines() == lines


@pytest.mark.parametrize(
    ("on", "words", "message"),
    [
        ("slurm:array=0", {}, "at least 1"),
        ("slurm:partition=a b", {}, "not an option of sbatch"),
        ("slurm:time=1\n#SBATCH --uid=0", {}, "not an option of sbatch"),
        ("slurm", {"workers": 2}, "use --on slurm:array=N"),
        ("slurm", {"gpus": 0.5}, "whole numbers"),
    ],
)
def test_impossible_jobs_are_refused(on, words, message):
    with pytest.raises(SpecError, match=message):
        make_pool(on, **words)


def test_jobs_return_nothing_to_a_process_that_waits():
    assert list(make_pool("slurm").map(str, [], str)) == []
    with pytest.raises(SpecError, match="afield bench"):
        list(make_pool("slurm").map(str, [1], str))


def test_without_slurm_there_is_one_line(store, plan, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SpecError, match="squeue is not on this machine"):
        make_pool("slurm").submit(store, plan)
    make_pool("slurm").write_script(store, plan)
    assert describe_tasks(store, plan) == ""


def is_slurm_running():
    try:
        subprocess.run(["sinfo"], check=True, capture_output=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return False
    return True


@pytest.fixture
def cluster():
    if not is_slurm_running():
        pytest.skip("no Slurm answers here: sinfo fails")


@pytest.mark.slurm
@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_an_array_that_is_requeued_and_cancelled_ends_in_the_bytes_of_local_runs(store, tmp_path):
    settings = {"steps": 3000}
    runs = [plan_run("spirals", "erm", target=t, settings=settings) for t in TARGETS]
    plan, pool = plan_of(runs), make_pool("slurm:array=2")
    put_plan(plan, runs, store)
    name = f"--name=afield-{plan.number}"
    message = pool.submit(store, plan)
    job = message.split()[2].rstrip(":")
    assert "2 tasks for 3 runs" in message
    assert "2 tasks" in pool.submit(store, plan)
    wait_until(store.progress)
    assert "running" in describe_tasks(store, plan)
    subprocess.run(["scontrol", "requeue", f"{job}_0"], check=True)
    subprocess.run(["scancel", name], check=True)
    wait_until(lambda: not active_tasks(plan))
    assert store.failures() == []
    plan = plan_of(runs, known=len(store.done()))
    put_plan(plan, runs, store)
    if plan.known < len(runs):
        assert "submitted" in pool.submit(store, plan)
    wait_until(lambda: not active_tasks(plan))
    alone = Store(tmp_path / "alone")
    for run in runs:
        execute(run, alone)
        assert outcome(store, run) == outcome(alone, run)
        with store.claim(run, wait=False):
            pass
