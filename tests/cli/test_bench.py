"""Benchmarks from files and on clusters, and following them, as typed."""

import signal
import subprocess
import sys
import time

import pytest

from afield.experiments.store import Store

QUICK = ("--steps", "10", "--workers", "1", "--trials", "2")
FILE = 'dataset = "spirals"\nmethods = ["erm", "vrex"]\ntrials = 1\nworkers = 1\nsteps = 10\n'


def test_sweep_prints_the_table_that_bench_would(afield, tmp_path):
    (tmp_path / "bench.toml").write_text(FILE)
    code, of_file, _ = afield("sweep", "bench.toml", "--store", "first")
    assert code == 0
    words = ("--methods", "erm,vrex", "--trials", "1", "--steps", "10", "--workers", "1")
    _, of_options, _ = afield("bench", "spirals", *words, "--store", "second")
    assert of_file == of_options


def test_a_mistake_in_a_file_is_one_line(afield, tmp_path):
    (tmp_path / "bench.toml").write_text("trials = 'x'")
    code, _, err = afield("sweep", "bench.toml")
    assert code == 2
    assert err.startswith("error: bench.toml: trials")
    assert len(err.splitlines()) == 1


def test_quiet_says_only_the_table(afield):
    words = ("bench", "spirals", "--methods", "erm", *QUICK)
    _, table, loud = afield(*words)
    code, out, err = afield(*words, "--quiet", "--store", "again")
    assert (code, out, err) == (0, table, "")
    assert loud


def test_quiet_says_what_failed(afield):
    words = ("--methods", "erm", *QUICK, "--set", "lr=1e30", "--quiet")
    code, _, err = afield("bench", "spirals", *words)
    assert code == 1
    assert err.count("failed: erm on") == 8


def test_status_says_what_was_asked_and_how_far_it_is(afield, tmp_path):
    afield("bench", "spirals", "--methods", "erm", *QUICK)
    code, out, _ = afield("status")
    assert code == 0
    assert "afield bench spirals --methods erm" in out
    assert "(done)" in out
    assert "8/8 runs done" in out
    next(tmp_path.glob("runs/*/record.json")).unlink()
    assert "7/8 runs done" in afield("status", "runs")[1]


def test_status_names_failures(afield):
    words = ("--methods", "erm", *QUICK, "--set", "lr=1e30")
    afield("bench", "spirals", *words)
    _, out, _ = afield("status", "runs", "--follow")
    assert "0/8 runs done, 8 failed" in out
    assert out.count("failed: erm on") == 8


def test_status_of_nothing_is_a_clear_error(afield):
    code, _, err = afield("status", "nowhere")
    assert code == 2
    assert "nothing was asked for there" in err


def test_records_can_lie_at_an_address(afield):
    address = "memory://cli/runs"
    code, table, err = afield("bench", "spirals", "--methods", "erm", *QUICK, "--store", address)
    assert code == 0
    assert f"8 records in {address}" in err
    again, _, told = afield("bench", "spirals", "--methods", "erm", *QUICK, "--store", address)
    assert again == 0
    assert "(8 of them in the store already)" in told
    assert afield("table", address, "--rules", "sources,target")[1] == table
    assert "8/8 runs done" in afield("status", address)[1]


def test_curves_for_tensorboard_lie_in_the_store(afield, tmp_path):
    pytest.importorskip("tensorboard", reason="pip install 'afield[tensorboard]'")
    afield("bench", "spirals", "--methods", "erm", *QUICK, "--tensorboard")
    keys = {record.run.key for record in Store(tmp_path / "runs")}
    assert {path.parent.name for path in tmp_path.glob("runs/tensorboard/*/events*")} == keys
    afield("train", "spirals", "vrex", "--target", "turn0", "--steps", "5", "--tensorboard")
    assert list(tmp_path.glob("runs/tensorboard/vrex-*/events*"))


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_benchmark_on_ray_gives_the_same_table(afield, monkeypatch):
    # Not the cluster of another test that runs at the same time.
    monkeypatch.setenv("RAY_ADDRESS", "local")
    ray = pytest.importorskip("ray", reason="pip install 'afield[ray]'")
    words = ("bench", "spirals", "--methods", "erm", "--trials", "1", "--steps", "10")
    _, here, _ = afield(*words, "--store", "here")
    try:
        code, there, _ = afield(*words, "--store", "there", "--on", "ray")
    finally:
        ray.shutdown()
    assert code == 0
    assert there == here


@pytest.mark.ray
@pytest.mark.slow
def test_ctrl_c_on_ray_stops_what_is_under_way(afield, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "local")
    pytest.importorskip("ray", reason="pip install 'afield[ray]'")
    command = [sys.executable, "-c", "from afield.cli.app import main; main()"]
    words = ["bench", "spirals", "--methods", "erm", "--steps", "1000000", "--on", "ray"]
    bench = subprocess.Popen([*command, *words], stderr=subprocess.PIPE, text=True)
    begun = time.monotonic()
    while not list(tmp_path.glob("runs/*/progress.json")):
        assert time.monotonic() - begun < 300
        time.sleep(0.2)
    bench.send_signal(signal.SIGINT)
    _, said = bench.communicate(timeout=60)
    assert bench.returncode == 130
    assert said.strip().splitlines()[-1] == "stopped; start it again to go on"
    begun = time.monotonic()
    while "running" in (out := afield("status")[1]):
        assert time.monotonic() - begun < 60
        time.sleep(0.5)
    assert "(not at work)" in out
    assert "stopped" in out


def test_where_to_run_must_be_known(afield):
    code, _, err = afield("bench", "spirals", "--on", "slurm")
    assert code == 2
    assert "nowhere called 'slurm' to run on" in err
