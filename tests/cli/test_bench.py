"""`afield bench`, `sweep` and `status` as a user types them."""

import gzip
import json
import re
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from afield.reporting.benchmarking import bench
from afield.runs.store import Store
from tests.files import pictures
from tests.waiting import HANG_SECONDS, wait_until

QUICK = ("--steps", "10", "--workers", "1", "--trials", "2")
FILE = 'dataset = "spirals"\nmethods = ["erm", "vrex"]\ntrials = 1\nworkers = 1\nsteps = 10\n'


def test_bench_prints_a_table_and_leaves_records_and_a_report(afield, tmp_path):
    words = ("bench", "spirals", "--methods", "erm,vrex", *QUICK)
    code, out, err = afield(*words)
    assert code == 0
    for word in ("turn0", "turn30", "mean", "worst", "erm", "vrex", "±", "sources:"):
        assert word in out
    assert "target:" not in out
    assert "16 records in runs" in err
    assert "report in runs/report.html" in err
    assert "already" not in err
    assert "spirals" in (tmp_path / "runs" / "report.html").read_text()
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("record.json")}
    assert len(before) == 16
    code, again, err = afield(*words)
    assert (code, again) == (0, out)
    assert "16 runs (16 already in the store): " in err
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("record.json")} == before


@pytest.fixture
def timeless(monkeypatch):
    """Runs take no time and no memory: records of equal runs are equal."""
    clock = SimpleNamespace(monotonic=lambda: 0.0, time=lambda: 0.0)
    monkeypatch.setattr("afield.runs.runner.time", clock)
    peak = nullcontext(lambda: 1)
    monkeypatch.setattr("afield.runs.runner.track_peak_memory", lambda device: peak)


@pytest.mark.usefixtures("timeless")
def test_python_and_the_shell_leave_the_same_store_table_and_report(afield, tmp_path, monkeypatch):
    words = ("--methods", "erm,vrex", "--draws", "2", "--merges", "average", "--trials", "1")
    tables = {}
    for place in ("shell", "python"):
        (tmp_path / place).mkdir()
        monkeypatch.chdir(tmp_path / place)
        if place == "shell":
            assert afield("bench", "spirals", *words, "--steps", "5", "--workers", "1")[0] == 0
        else:
            bench("spirals", ["erm", "vrex"], draws=2, merges="average", trials=1, steps=5)
        assert "(done)" in afield("status")[1]
        tables[place] = afield("table", "--format", "csv")[1]
    assert tables["shell"] == tables["python"]
    shell, python = (
        {path.relative_to(tmp_path / place): path for path in (tmp_path / place).rglob("*.*")}
        for place in ("shell", "python")
    )
    assert shell.keys() == python.keys()
    assert sum(path.name == "model.safetensors" for path in shell) > 50
    for name, path in shell.items():
        if name.name.endswith(".runs.jsonl.gz"):
            assert gzip.decompress(path.read_bytes()) == gzip.decompress(python[name].read_bytes())
        elif name.parent.name == "plans":
            keys = [json.loads(each.read_text())["keys"] for each in (path, python[name])]
            assert keys[0] == keys[1]
        elif path.is_file():
            assert path.read_bytes() == python[name].read_bytes(), name
    assert Path("runs/report.html") in shell


def test_failures_are_shown_with_their_reason_and_the_exit_code_tells(afield):
    words = ("bench", "spirals", "--methods", "erm", *QUICK, "--set", "lr=1e30")
    code, out, err = afield(*words)
    assert (code, out.strip()) == (1, "")
    assert err.count("failed: erm") == 8
    assert "smaller lr" in err
    assert "0 records" in err
    code, _, quiet = afield(*words, "--quiet")
    assert code == 1
    assert [line.split(":")[0] for line in quiet.splitlines()] == ["failed"] * 8
    _, out, _ = afield("status", "runs", "--follow")
    assert "0/8 runs done, 8 failed" in out
    assert out.count("failed: erm on") == 8


def test_broken_images_stop_a_benchmark_unless_they_are_skipped(afield, refusal, tmp_path, caplog):
    (pictures(tmp_path / "own") / "home" / "dark" / "0.png").write_bytes(b"no image")
    words = ("bench", "own", "--methods", "erm", "--set", "size=16", *QUICK)
    message = refusal(*words)
    assert "home/dark/0.png" in message
    assert "--skip-broken" in message
    code, out, _ = afield(*words, "--skip-broken")
    assert code == 0
    assert "away office" in out
    assert "1 broken file(s) left out" in caplog.text
    assert {record.dropped for record in Store(tmp_path / "runs")} == {1}


def test_a_share_of_many_domains_is_held_out(afield, tmp_path):
    y = np.tile([0, 1], 72)
    x = np.eye(2)[y] + 0.3 * np.random.default_rng(0).normal(size=(len(y), 2))
    clinics = [f"Klinik {i} – Süd" if i % 3 else f"病院 {i}" for i in range(12)]
    np.savez(tmp_path / "many.npz", X=x, y=y, domain=np.repeat(clinics, 12))
    code, out, err = afield(
        "bench", "many", "--methods", "erm", "--hold-out", ".25", "--validate", ".1",
        "--train-on", "3, 5,all", "--domains-per-step", "2", "--set", "balance=true", *QUICK,
    )  # fmt: skip
    assert code == 0
    plan = "6 runs: small:mlp from random weights, 10 steps of 2 × 32 samples"
    assert err.splitlines()[0] == plan
    assert out.count("many, 3 domains held out, 1 validating: accuracy") == 1
    for word in ("validation:", "mean", "worst 10 %", "spread"):
        assert word in out
    for row in ("erm domains=3", "erm domains=5", "erm domains=8"):
        assert sum(line.strip().startswith(row) for line in out.splitlines()) == 1
    runs = [record.run for record in Store(tmp_path / "runs")]
    assert sorted(len(run.sources) for run in runs) == [3, 3, 5, 5, 8, 8]
    assert {(len(run.tested), run.domains_per_step, run.balance) for run in runs} == {(3, 2, True)}


@pytest.mark.slow
def test_merges_stand_in_one_table_with_methods_and_what_they_are_compared_with(
    afield, refusal, tmp_path
):
    y = np.tile([0, 1], 30)
    x = np.eye(2)[y] + 0.3 * np.random.default_rng(0).normal(size=(len(y), 2))
    np.savez(tmp_path / "own.npz", X=x, y=y, domain=np.repeat(list("abc"), 20))
    words = ("bench", "own.npz", "--methods", "erm", "--merges", "average,score", "--format", "md")
    words += ("--steps", "5", "--workers", "1", "--trials", "1")
    code, out, err = afield(*words)
    assert code == 0
    first = out.split("**own**")[1]
    rows = [line.split("|")[1].strip() for line in first.splitlines() if line.startswith("|")]
    compared = ["base", "best_expert", "logit_ensemble", "target_expert"]
    assert sorted(rows[2:]) == sorted(["erm", *compared, "average", "score"])
    assert f"{3 + 3 + 9 + 18} records in runs" in err
    again = afield(*words)
    assert again[:2] == (code, out)
    assert "33 already in the store" in again[2]
    assert afield(*words, "--rules", "sources")[1].count("**own**") == 1
    shown = afield("table", "runs", "--format", "md")[1]
    assert sorted(shown.splitlines()) == sorted(out.splitlines())
    folder = next((tmp_path / "runs").glob("score-*"))
    assert f"{folder.name}: this model is not trained" in refusal("train", "--like", folder)
    assert afield("diagnose", "agreement", folder, "--set", "samples=10")[0] == 0
    assert afield("export-domainbed", "runs", "out")[0] == 0
    assert list(tmp_path.glob("out/score-*/results.jsonl"))
    assert afield(*words, "--set", "score.tau=1")[0] == 0
    assert afield(*words, "--expert-method", "erm,vrex", "--base-steps", "2")[0] == 0
    _, out, _ = afield("table", "runs", "--format", "csv")
    for row in ("score tau=1.0", "score base_steps=2 experts=erm+vrex"):
        assert f",{row}," in out
    code, out, _ = afield("diagnose", "sensitivity", "runs")
    assert code == 0
    assert "score: best at tau=" in out


@pytest.mark.parametrize("command", ["bench", "sweep"])
def test_a_file_gives_the_table_that_its_options_would(afield, tmp_path, command):
    (tmp_path / "bench.toml").write_text(FILE)
    code, of_file, _ = afield(command, "bench.toml", "--store", "first")
    assert code == 0
    words = ("--methods", "erm,vrex", "--trials", "1", "--steps", "10", "--workers", "1")
    code, of_options, err = afield("bench", "spirals", *words, "--store", "second", "--quiet")
    assert (code, of_options, err) == (0, of_file, "")


OVERRIDES = [
    ((), {"trial": {0, 1}, "method": {"erm", "vrex"}, "steps": {3}, "penalty": {None, 7.0}}),
    # A value that is the default of the option replaces that of the file, too.
    (("--trials", "3"), {"trial": {0, 1, 2}}),
    (("--methods", "vrex"), {"method": {"vrex"}, "penalty": {7.0}}),
    (("--steps", "2"), {"steps": {2}}),
    (("--set", "steps=2", "--set", "vrex.penalty=5"), {"steps": {2}, "penalty": {None, 5.0}}),
    (("--average", "ema"), {"average": {"ema"}}),
]


@pytest.mark.parametrize(("words", "expected"), OVERRIDES, ids=[" ".join(w) for w, _ in OVERRIDES])
def test_options_replace_those_of_the_file(monkeypatch, afield, tmp_path, words, expected):
    (tmp_path / "bench.toml").write_text(
        'dataset = "spirals"\nmethods = ["erm", "vrex"]\ntrials = 2\nworkers = 1\nsteps = 3\n'
        'vrex.penalty = 7\naverage = "last"\n'
    )
    asked = []
    monkeypatch.setattr(
        "afield.cli.console.run_and_print", lambda benchmark, **_: asked.extend(benchmark.runs())
    )
    assert afield("bench", "bench.toml", *words)[0] == 0
    for name, values in expected.items():
        assert {getattr(run, name, run.params.get(name)) for run in asked} == values, name


def test_a_recipe_is_changed_by_its_own_command(afield, tmp_path):
    (tmp_path / "turns.toml").write_text(
        'title = "turns"\nreproduces = "exact"\n[[parts]]\ndataset = "spirals"\n'
        'methods = "erm"\ntrials = 1\nworkers = 1\nsteps = 2\n'
    )
    code, _, err = afield("bench", "turns.toml", "--trials", "2", "--set", "lr=0.1")
    assert (code, err.count("\n")) == (2, 1)
    assert "turns.toml is a recipe, which --trials, --set cannot change" in err
    code, out, _ = afield("bench", "turns.toml", "--store", "there")
    assert code == 0
    assert out.startswith("turns")
    assert len(list(Store(tmp_path / "there"))) == 4


@pytest.mark.parametrize("command", ["bench", "sweep"])
def test_a_mistake_in_a_file_is_one_line(refusal, tmp_path, command):
    (tmp_path / "bench.toml").write_text("trials = 'x'")
    assert refusal(command, "bench.toml").startswith("error: bench.toml: trials")


def test_records_can_lie_at_an_address(afield):
    address = "memory://cli/runs"
    words = ("bench", "spirals", "--methods", "erm", *QUICK, "--store", address)
    code, table, err = afield(*words)
    assert code == 0
    assert f"8 records in {address}" in err
    assert "(8 already in the store)" in afield(*words)[2]
    assert afield("table", address)[1] == table
    assert "8/8 runs done" in afield("status", address)[1]


def test_status_shows_the_command_and_its_progress(afield, tmp_path):
    afield("bench", "spirals", "--methods", "erm", *QUICK)
    code, out, _ = afield("status")
    assert code == 0
    assert "afield bench spirals --methods erm" in out
    assert "(done)" in out
    assert "8/8 runs done" in out
    next(tmp_path.glob("runs/*/record.json")).unlink()
    assert "7/8 runs done" in afield("status", "runs")[1]


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
        code, there, _ = afield(*words, "--store", "there", "--on", "ray:cpus=1")
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
    words = ["bench", "spirals", "--methods", "erm", "--steps", "100000000", "--on", "ray"]
    bench = subprocess.Popen([*command, *words], stderr=subprocess.PIPE, text=True)
    wait_until(lambda: list(tmp_path.glob("runs/*/progress.json")), process=bench)
    bench.send_signal(signal.SIGINT)
    _, err = bench.communicate(timeout=HANG_SECONDS)
    assert bench.returncode == 130
    assert err.strip().splitlines()[-1] == "stopped; run the same command again to continue"
    wait_until(lambda: not re.search(r"\d running", afield("status")[1]))
    out = afield("status")[1]
    assert "(not running)" in out
    assert "stopped" in out
