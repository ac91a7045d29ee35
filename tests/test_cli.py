"""The command line as a user types it: the whole line on spirals, and one mistake of each kind."""

import io
import json
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from rich.console import Console

from afield import cli, console
from afield.record import Store

QUICK = ("--steps", "10", "--workers", "1", "--trials", "2")


@pytest.fixture
def afield(monkeypatch, capsys, tmp_path):
    """Type a command; get its exit code, standard output and standard error."""
    monkeypatch.chdir(tmp_path)

    def typed(*words):
        monkeypatch.setattr(sys, "argv", ["afield", *map(str, words)])
        # Made when the module was imported, for the streams of that moment.
        monkeypatch.setattr(console, "out", Console(width=200, highlight=False))
        monkeypatch.setattr(console, "err", Console(stderr=True, width=200, highlight=False))
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = int(end.code or 0)
        said = capsys.readouterr()
        return code, said.out, said.err

    return typed


def test_bench_prints_one_table_and_the_place_of_the_records(afield, tmp_path):
    code, out, err = afield("bench", "spirals", "--methods", "erm,vrex", *QUICK)
    assert code == 0
    for word in ("turn0", "turn30", "mean", "worst", "erm", "vrex", "±", "sources:", "target:"):
        assert word in out
    assert "16 records in runs" in err
    assert len(list(Store(tmp_path / "runs"))) == 16


def test_a_second_bench_does_nothing_and_says_the_same(afield, tmp_path):
    first = afield("bench", "spirals", "--methods", "erm", *QUICK)
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("record.json")}
    assert afield("bench", "spirals", "--methods", "erm", *QUICK)[:2] == first[:2]
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("record.json")} == before


def test_all_rules_bring_the_twins_and_a_third_section(afield):
    code, out, err = afield("bench", "spirals", "--methods", "erm", "--rules", "all", *QUICK)
    assert code == 0
    assert "left-out-source:" in out
    assert f"{2 * (4 + 6)} records" in err


def test_draws_are_tried_and_counted(afield):
    _, _, err = afield("bench", "spirals", "--methods", "vrex", "--draws", "3", *QUICK)
    assert f"{2 * 4 * 3} records" in err


@pytest.mark.parametrize(
    ("format_", "sign"), [("md", "| method |"), ("latex", r"\toprule"), ("csv", "stderr")]
)
def test_formats_go_to_standard_output_alone(afield, format_, sign):
    code, out, _ = afield("bench", "spirals", "--methods", "erm,vrex", "--format", format_, *QUICK)
    assert code == 0
    assert sign in out
    assert "records" not in out


def test_csv_is_a_table_that_others_can_read(afield):
    afield("bench", "spirals", "--methods", "erm", *QUICK)
    _, out, _ = afield("table", "runs", "--format", "csv")
    frame = pd.read_csv(io.StringIO(out))
    assert set(frame["rule"]) == {"sources", "target"}
    assert set(frame["domain"]) == {"turn0", "turn10", "turn20", "turn30", "mean", "worst"}
    assert frame["accuracy"].between(0, 1).all()


def test_train_shows_sources_and_the_unseen_domain_and_can_be_repeated(afield, tmp_path):
    code, out, err = afield(
        "train", "spirals", "vrex", "--target", "turn10", "--steps", "10", "--set", "vrex.penalty=2"
    )
    assert code == 0
    assert out.count("probe") == 3
    assert out.count("unseen") == 1
    (folder,) = (tmp_path / "runs").glob("vrex-*")
    assert folder.name in err
    code, again, _ = afield("train", "--like", folder, "--store", "other")
    assert (code, again) == (0, out)
    weights = "model.safetensors"
    other = tmp_path / "other" / folder.name / weights
    assert other.read_bytes() == (folder / weights).read_bytes()


def test_failures_are_shown_with_their_reason_and_the_exit_code_tells(afield):
    code, out, err = afield("bench", "spirals", "--methods", "erm", *QUICK, "--set", "lr=1e30")
    assert code == 1
    assert err.count("failed: erm") == 8
    assert "smaller lr" in err
    assert "0 records" in err
    assert out.strip() == ""


def test_own_pictures_in_folders(afield, tmp_path):
    generator = np.random.default_rng(0)
    for domain in ("home", "away office"):
        for label, level in (("dark", 40), ("bright", 200)):
            folder = tmp_path / "own" / domain / label
            folder.mkdir(parents=True)
            for i in range(6):
                noise = generator.integers(-30, 30, (12, 14, 3))
                Image.fromarray((level + noise).astype(np.uint8)).save(folder / f"{i}.png")
    code, out, _ = afield("bench", "own", "--methods", "erm", *QUICK)
    assert code == 0
    assert "away office" in out


def test_own_arrays(afield, tmp_path):
    y = np.tile([0, 1], 20)
    np.savez(tmp_path / "own.npz", X=np.eye(2)[y], y=y, domain=np.repeat(["a", "b"], 20))
    code, out, _ = afield("bench", "own.npz", "--methods", "erm", *QUICK)
    assert code == 0
    assert "own: accuracy" in out


def test_export_writes_what_domainbed_reads(afield, tmp_path):
    afield("bench", "spirals", "--methods", "erm", *QUICK)
    code, out, _ = afield("export-domainbed", "runs", "out", "--dataset", "RotatedMNIST")
    assert code == 0
    assert "8 runs" in out
    (first, *rest) = sorted((tmp_path / "out").iterdir())
    assert len(rest) == 7
    assert (first / "done").exists()
    line = json.loads((first / "results.jsonl").read_text().splitlines()[0])
    assert line["args"]["dataset"] == "RotatedMNIST"


def test_list_names_everything_with_a_line_on_each(afield):
    code, out, _ = afield("list")
    assert code == 0
    for word in ("methods", "averages", "datasets", "groupdro", "ema", "rotated_digits", "V-REx"):
        assert word in out
    assert "rotated_digits" not in afield("list", "methods")[1]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("vrex", ("penalty = 10.0", "LogUniform", "Differs from")),
        ("erm", ("settings: none",)),
        ("ema", ("decay = 0.999",)),
        ("rotated_digits", ("0deg, 15deg", "every image", "classes: 0, 1")),
    ],
)
def test_explain_tells_formula_settings_and_ranges(afield, name, told):
    code, out, _ = afield("explain", name)
    assert code == 0
    for words in told:
        assert words.lower() in out.lower()


MISTAKES = [
    (("bench", "rotated_digit"), "did you mean 'rotated_digits'"),
    (("bench", "no/such/folder"), "no file or folder no/such/folder"),
    (("bench", "spirals", "--methods", "ermm"), "did you mean 'erm'"),
    (("bench", "spirals", "--rules", "source"), "did you mean 'sources'"),
    (("bench", "spirals", "--average", "emma"), "did you mean 'ema'"),
    (("bench", "spirals", "--backbone", "small:cn"), "did you mean 'small:cnn'"),
    (("bench", "spirals", "--backbone", "small:cnn"), "use small:mlp"),
    (("bench", "spirals", "--format", "tex"), "did you mean 'latex'"),
    (("bench", "spirals", "--set", "steps"), "write name=value"),
    (("bench", "spirals", "--set", "stepz=3"), "did you mean 'steps'"),
    (("bench", "spirals", "--set", "steps=few"), "steps='few'"),
    (("bench", "spirals", "--set", "arith.eps=1"), "no 'arith' in this benchmark"),
    (("train", "spirals", "erm", "--target", "turn1"), "did you mean 'turn10'"),
    (("train", "spirals", "erm", "--set", "vrex.penalty=3"), "'vrex' is not in this run"),
    (("train", "spirals", "erm", "--threads", "100000"), "threads=100000"),
    (("train", "spirals", "erm", "--set", "every=0"), "every=0"),
    (("bench", ""), "no dataset and no file"),
    (("bench", "~nosuchuser/x"), "no file or folder"),
    (("bench", "spirals", "--rules", ","), "no rule is given"),
    (("train", "spirals"), "give a dataset and a method"),
    (("train", "--like", "nowhere"), "no record.json"),
    (("train", "--like", "nowhere", "--steps", "3"), "give no other setting"),
    (("table", "nowhere"), "no records there"),
    (("explain", "vrx"), "did you mean 'vrex'"),
    (("list", "method"), "did you mean 'methods'"),
    (("export-domainbed", "nowhere", "out"), "no records there"),
]


@pytest.mark.parametrize(("words", "told"), MISTAKES, ids=[" ".join(w) for w, _ in MISTAKES])
def test_a_mistake_is_one_clear_line_and_exit_code_2(afield, tmp_path, words, told):
    code, out, err = afield(*words)
    assert code == 2
    assert out == ""
    assert len(err.strip().splitlines()) == 1
    assert err.strip().startswith("error: ")
    assert told in err
    assert not (tmp_path / "runs").exists()


def test_help_starts_fast_because_it_imports_no_torch():
    check = "import sys, afield.cli; sys.exit('torch' in sys.modules or 'pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_every_command_has_a_help_text(afield):
    _, out, _ = afield("--help")
    for command in ("bench", "train", "table", "list", "explain", "export-domainbed"):
        assert command in out
        code, told, _ = afield(command, "--help")
        assert code == 0
        assert "Usage" in told


@pytest.mark.slow
def test_ctrl_c_stops_at_once_and_nothing_is_left_running(tmp_path):
    command = [sys.executable, "-c", "from afield.cli import main; main()"]
    words = ["bench", "spirals", "--methods", "erm", "--steps", "1000000", "--workers", "2"]
    bench = subprocess.Popen(
        [*command, *words], cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    begun = time.monotonic()
    while not list(tmp_path.glob("runs/*/lock")):
        assert time.monotonic() - begun < 60
        time.sleep(0.1)
    bench.send_signal(signal.SIGINT)
    # The pipes end only when every worker has let go of them; their runs would last for minutes.
    _, said = bench.communicate(timeout=20)
    assert bench.returncode == 130
    assert said.strip().splitlines()[-1] == "stopped; start it again to go on"


def test_a_store_that_cannot_be_written_is_one_line(afield, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    code, _, err = afield("bench", "spirals", "--methods", "erm", *QUICK, "--store", "file")
    assert code == 2
    assert len(err.strip().splitlines()) == 1
    assert "cannot write to file" in err


def test_the_version_is_told(afield):
    code, out, _ = afield("--version")
    assert code == 0
    assert out.startswith("afield 0.")
