"""``afield recipe``: lists, shows, runs and continues."""

import signal
import subprocess
import sys

import pytest

from afield.runs.store import Store
from tests.runs.interruption import outcome

TOML = """
title = "two turns"
reproduces = "approximate"
differs = "the data"
after = "afield report STORE"
[options]
dataset = "spirals"
targets = ["turn0"]
trials = 1
steps = 100
[[parts]]
methods = ["erm", "vrex"]
[[parts.numbers]]
columns = ["turn0"]
rows.erm = [99.0]
rows.vrex = [99.0]
"""

KILLED_AFTER_A_RUN = """
import os
from afield.cli.app import main
from afield.runs.store import Store

put = Store.put

def put_and_die(*arguments, **options):
    put(*arguments, **options)
    os.kill(os.getpid(), 9)

Store.put = put_and_die
main()
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "turns.toml"
    path.write_text(TOML)
    return path


def test_list_names_all_tables(afield):
    code, out, _ = afield("recipe", "list")
    assert code == 0
    assert sum("_table" in line for line in out.splitlines()) == 28


def test_show_says_what_it_costs(afield, file):
    code, out, _ = afield("recipe", "show", file, "--scale", 0.5)
    assert code == 0
    assert "two turns [steps × 0.5]" in out
    assert "runs: 2, 100 training steps" in out
    assert "time: about" in out


def test_show_states_the_command_that_runs_what_it_shows(afield, file):
    given = ("--trials", 1, "--scale", 0.5, "--methods", "erm", "--set", "lr=0.1")
    given += ("--set", "size=8")
    code, out, _ = afield("recipe", "show", file, "--no-measure", *given)
    options = "--scale 0.5 --trials 1 --methods erm --set lr=0.1 --set size=8"
    assert (code, f"run it: afield recipe run {file} {options}" in out) == (0, True)
    _, out, _ = afield("recipe", "show", file, "--no-measure")
    assert f"run it: afield recipe run {file}\n" in out


@pytest.mark.slow
def test_run_shows_the_paper_beside_ours_and_continues(afield, file, tmp_path):
    store = tmp_path / "store"
    words = ("recipe", "run", file, "--scale", 0.5, "--store", store, "--workers", 1)
    code, first, _ = afield(*words, "--methods", "erm")
    assert code == 0
    assert "methods erm only" in first
    code, out, err = afield(*words)
    assert code == 0
    assert "2 runs (1 already in the store)" in err
    assert f"next: afield report {store}" in err
    assert "99 → " in out
    assert "[steps × 0.5]" in out
    assert "two turns [steps × 0.5]" in (store / "paper.md").read_text()
    code, again, _ = afield(
        "sweep", file, "--store", tmp_path / "other", "--format", "csv", "--workers", 1
    )
    assert code == 0
    assert again.startswith("part,rule,row,column,paper,ours")


def contents(store):
    """What must be the same in two stores: the weights and scores of all runs, and the tables."""
    runs = {record.run.key: outcome(Store(store), record.run) for record in Store(store)}
    return runs, {name: (store / name).read_bytes() for name in ("paper.csv", "paper.md")}


@pytest.mark.slow
def test_killed_between_two_runs_it_continues_to_the_same_bytes(afield, file, tmp_path):
    words = ("recipe", "run", file, "--trials", 3, "--quiet", "--store")
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    afield(*words, straight)
    command = [sys.executable, "-c", KILLED_AFTER_A_RUN, *words, broken, "--workers", 1]
    done = subprocess.run([str(word) for word in command], capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(list(broken.glob("*/record.json"))) == 1
    assert not (broken / "paper.csv").exists()
    code, _, _ = afield(*words, broken)
    assert code == 0
    assert contents(broken) == contents(straight)


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_on_ray_it_gives_the_same_bytes(afield, file, tmp_path, monkeypatch):
    # Not the cluster of another test that runs at the same time.
    monkeypatch.setenv("RAY_ADDRESS", "local")
    ray = pytest.importorskip("ray", reason="pip install 'afield[ray]'")
    words = ("recipe", "run", file, "--scale", 0.5, "--quiet", "--store")
    here, there = tmp_path / "here", tmp_path / "there"
    afield(*words, here)
    try:
        code, _, _ = afield(*words, there, "--on", "ray")
    finally:
        ray.shutdown()
    assert code == 0
    assert contents(there) == contents(here)
