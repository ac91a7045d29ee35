"""The command line as a whole: help, exit codes, and one mistake of each kind."""

import logging
import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import numpy as np
import pytest

from afield.cli.app import COMMANDS
from afield.cli.data import data
from tests.waiting import HANG_SECONDS, wait_until

PLACES = [place for places in COMMANDS.values() for place in places]
NAMES = [place.partition(".")[2].strip("_").replace("_", "-") for place in PLACES]
OF_DATA = [command.name or command.callback.__name__ for command in data.registered_commands]
MISTAKES = [
    (("bench", "rotated_digit"), "did you mean 'rotated_digits'"),
    (("bench", "no/such/folder"), "no file or folder no/such/folder"),
    (("bench", ""), "no dataset, file or folder is called"),
    (("bench", "pacs"), "set AFIELD_DATA for another"),
    (("bench", "spirals", "--methods", "ermm"), "did you mean 'erm'"),
    (("bench", "spirals", "--merges", "scor"), "did you mean 'score'"),
    (("bench", "spirals", "--rules", "source"), "did you mean 'sources'"),
    (("bench", "spirals", "--average", "emma"), "did you mean 'ema'"),
    (("bench", "spirals", "--backbone", "small:cn"), "did you mean 'small:cnn'"),
    (("bench", "spirals", "--weights", "no.pth"), "no.pth: cannot be read"),
    (("bench", "spirals", "--format", "tex"), "did you mean 'latex'"),
    (("bench", "spirals", "--on", "kubernetes"), "cannot run on 'kubernetes'"),
    (("bench", "spirals", "--on", "rai:cpus=1"), "did you mean 'ray'?"),
    (("bench", "spirals", "--on", "ray:cpu=1"), "ray has no setting 'cpu'; did you mean 'cpus'?"),
    (("bench", "spirals", "--on", "ray:cpus=one"), "ray.cpus='one': should be a valid number"),
    (("bench", "spirals", "--set", "steps"), "write NAME=VALUE"),
    (("bench", "spirals", "--set", "stepz=3"), "did you mean 'steps'"),
    (("bench", "spirals", "--set", "steps=few"), "steps='few'"),
    (("bench", "spirals", "--set", "mldg.beta=1"), "no 'mldg' in this benchmark"),
    (("bench", "spirals", "--set", "size=32"), "spirals has no"),
    (
        ("bench", "spirals", "--methods", "vrex", "--set", "vrex.penalty=-1"),
        "vrex.penalty=-1: must not be below 0",
    ),
    (
        ("bench", "spirals", "--average", "ema", "--set", "ema.decay=2"),
        "ema.decay='2': should be less than or equal to 1",
    ),
    (("bench", "spirals", "--validate", "0.2"), "--validate needs --hold-out"),
    (("bench", "spirals", "--hold-out", ".25", "--train-on", "few"), "--train-on few"),
    (("sweep", "no.toml"), "no.toml: cannot be read"),
    (("bench", "no.toml"), "no.toml: cannot be read"),
    (("fit", "no.toml", "erm", "--out", "m"), "no file or folder no.toml"),
    (("status", "nowhere"), "error: nowhere: "),
    (("table", "nowhere"), "no records there"),
    (("report", "nowhere"), "no records there"),
    (("export-domainbed", "nowhere", "out"), "no records there"),
    (("train", "spirals"), "no dataset and method given"),
    (("train", "spirals", "erm", "--target", "turn1"), "did you mean 'turn10'"),
    (("train", "spirals", "erm", "--threads", "100000"), "threads=100000"),
    (("train", "--like", "nowhere"), "no record.json"),
    (("train", "--like", "nowhere", "--steps", "3"), "remove the other settings"),
    (("train", "--like", "nowhere", "--draw", "1"), "remove the other settings"),
    (("train", "--like", "nowhere", "--target", "turn0"), "remove the other settings"),
    (("train", "--like", "nowhere", "--average", "ema"), "remove the other settings"),
    (("train", "--like", "nowhere", "--no-finetune"), "remove the other settings"),
    (("train", "--like", "nowhere", "--skip-broken"), "remove the other settings"),
    (("train", "--like", "nowhere", "--device", "cpu", "--threads", "1"), "no record.json"),
    (("embed", "spirals", "--out", "emb"), "spirals"),
    (("embed", "rotated_digits", "--out", "no/emb"), "create it first"),
    (("diagnose", "agrement", "runs"), "did you mean 'agreement'?"),
    (("diagnose", "agreement", "nowhere"), "no record.json"),
    (("diagnose", "agreement", "nowhere", "--set", "sampels=3"), "did you mean 'samples'?"),
    (("diagnose", "agreement", "nowhere", "--out", "fig.jpg"), "png, svg, pdf"),
    (("fit", "spirals", "--out", "m"), "no method given"),
    (("fit", "spirals", "erm", "--method", "vrex", "--out", "m"), "give only one"),
    (("fit", "spirals", "best", "--out", "m"), "no benchmark of spirals"),
    (("fit", "spirals", "best", "--out", "m", "--steps", "3"), "from the store"),
    (("predict", "nowhere", "x.npy"), "error: nowhere"),
    (("predict", ".", "x.npy"), "error: "),
    (("explain", "vrx"), "did you mean 'vrex'"),
    (("list", "method"), "did you mean 'methods'"),
    (("new", "dataset", "mine"), "cannot start a 'dataset'; write `afield new method NAME`"),
    (("new", "method", "erm"), "erm"),
    (("new", "method", "my idea"), "my idea"),
    (("recipe", "run", "dmg_table2"), "needs data that are not here: pacs"),
    (("recipe", "run", "score_table4"), "has no runs"),
    (
        ("bench", "rotated_digits", "--metric", "auroc"),
        "auroc needs two classes, but rotated_digits has 10",
    ),
]


@pytest.mark.parametrize(("words", "message"), MISTAKES, ids=[" ".join(w) for w, _ in MISTAKES])
def test_a_mistake_is_one_clear_line_and_exit_code_2(
    refusal, tmp_path, monkeypatch, words, message
):
    monkeypatch.setenv("AFIELD_DATA", str(tmp_path / "data"))
    assert message in refusal(*words)


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("bench", "spirals", "--hold-out", ".95"), "--hold-out"),
        (("bench", "spirals", "--trials", "0"), "--trials"),
        (("train", "spirals", "erm", "--domains-per-step", "0"), "--domains-per-step"),
        (("train", "spirals", "erm", "--threads", "0"), "--threads"),
        (("fit", "spirals", "erm", "--out", "m", "--workers", "0"), "--workers"),
        (("embed", "rotated_digits"), "--out"),
    ],
)
def test_an_option_that_is_missing_or_out_of_range_is_named(afield, tmp_path, words, option):
    code, out, err = afield(*words)
    assert (code, out) == (2, "")
    assert option in err
    assert not list(tmp_path.iterdir())


def test_a_store_that_cannot_be_written_is_one_line(afield, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    words = ("--methods", "erm", "--steps", "2", "--workers", "1", "--store", "file")
    code, _, err = afield("bench", "spirals", *words)
    assert (code, err.count("\n")) == (2, 1)
    assert "cannot write to file" in err


def test_notes_are_whole_lines_on_standard_error(afield, tmp_path, monkeypatch):
    # Pytest's own handlers would keep the command line from adding its own.
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    label = "a label " + 20 * "of many words "
    np.savez(tmp_path / "own.npz", X=np.eye(4), y=["b", label, "b", "b"], domain=list("aabb"))
    code, _, err = afield("train", "own.npz", "erm", "--steps", "1", width=80)
    assert code == 0
    note, *idle, place = err.splitlines()
    assert all("--threads" in line for line in idle)
    assert note == f"note: own: domain 'b' has no sample of class {label!r}"
    assert place.startswith("record and weights in runs")


def test_help_lists_every_command_and_each_has_a_help_text(afield):
    code, out, _ = afield("--help")
    assert code == 0
    assert {name for line in out.splitlines() for name in line.split()[1:2]} >= {*NAMES, "data"}
    groups = {"data": OF_DATA, "recipe": ("list", "run", "show")}
    inner = [[group, name] for group, names in groups.items() for name in names]
    for words in [*([name] for name in NAMES), *inner]:
        code, out, _ = afield(*words, "--help", width=80)
        assert code == 0
        assert "<str>" not in out
        assert "<bool>" not in out
        assert "<=" not in out
        assert ">=" not in out
        assert f"Usage: afield {' '.join(words)} " in out


def test_help_starts_fast_because_it_imports_no_torch():
    script = (
        "import sys; sys.argv = ['afield', 'bench', '--help']\n"
        "from afield.cli import main\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n    assert not end.code\n"
        "assert not {'torch', 'pandas'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_version_is_shown(afield):
    code, out, _ = afield("--version")
    assert code == 0
    assert out.startswith("afield 0.")


@contextmanager
def started(folder, *words):
    """A command in a process of its own, which ends with the test.

    Ctrl-C reaches it even if the tests run in the background, where a shell ignores it.
    """
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from afield.cli.app import main; main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()


@pytest.mark.slow
def test_ctrl_c_stops_at_once_and_nothing_is_left_running(tmp_path):
    words = ("bench", "spirals", "--methods", "erm", "--steps", "100000000", "--workers", "2")
    with started(tmp_path, *words) as bench:
        wait_until(lambda: list(tmp_path.glob("runs/*/lock")), process=bench)
        bench.send_signal(signal.SIGINT)
        # The pipes end only when every worker has let go of them; their runs would last a day.
        _, err = bench.communicate(timeout=HANG_SECONDS)
    assert bench.returncode == 130
    assert err.strip().splitlines()[-1] == "stopped; run the same command again to continue"


@pytest.mark.slow
def test_a_polite_request_to_end_leaves_no_warning(tmp_path):
    """SIGTERM while worker processes train: no traceback and no word about semaphores."""
    words = ("bench", "spirals", "--methods", "erm", "--steps", "1000000", "--workers", "2")
    with started(tmp_path, *words) as process:
        wait_until(lambda: list(tmp_path.glob("runs/*/progress.json")), process=process)
        process.terminate()
        _, errors = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 128 + signal.SIGTERM
    assert "semaphore" not in errors
    assert "Traceback" not in errors


def test_the_shell_completes_commands(afield):
    assert "--show-completion" in afield("--help")[1]


@pytest.mark.slow
def test_a_mistyped_path_is_reported_before_anything_large_is_imported():
    """Modules that take seconds to import must not be loaded by then."""
    program = (
        "import sys; from afield.cli.app import app\n"
        "try: app(sys.argv[1:], standalone_mode=False)\n"
        "except Exception as error: print(error)\n"
        "print([name for name in ('torch', 'pandas', 'scipy') if name in sys.modules])"
    )
    for words, message in (
        (("bench", "no/such/folder"), "no file or folder no/such/folder"),
        (("fit", "pacs/mini", "erm", "--out", "m"), "no file or folder pacs/mini"),
        (("data", "check", "./tets"), "did you mean tests?"),
        (("table", "nowhere"), "nowhere: no records there"),
        (("predict", "tets", "x.png"), "tets: no such model folder; did you mean tests?"),
        (("export", "tests"), "tests: no model.json in it"),
    ):
        command = [sys.executable, "-c", program, *words]
        completed = subprocess.run(command, capture_output=True, text=True, check=True)
        assert message in completed.stdout
        assert completed.stdout.endswith("[]\n")


@pytest.mark.slow
def test_a_reader_that_stops_reading_causes_no_traceback():
    reader, writer = os.pipe()
    os.close(reader)
    try:
        for words in (("list", "methods"), ("explain", "vrex")):
            script = "from afield.cli import main; main()"
            command = [sys.executable, "-c", script, *words]
            done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
            assert (done.returncode, done.stderr) == (1, b"")
    finally:
        os.close(writer)
