"""Progress, notes and tables on the console."""

import io
import logging
import os
import re
from dataclasses import replace

import pytest
from rich.table import Table
from rich.text import Text

from afield.cli import console
from afield.compute import hostname
from afield.errors import DataError
from afield.runs.record import Failure, Plan
from afield.runs.runner import execute
from afield.runs.store import Store
from afield.studies.planning import plan_run
from tests.waiting import wait_until


@pytest.fixture
def wide(monkeypatch):
    """Standard error is wide enough for every line."""
    monkeypatch.setattr(console, "err", console.SafeConsole(stderr=True, width=200))


def test_a_title_with_markup_is_shown_as_it_is(monkeypatch):
    monkeypatch.setattr(
        console, "err", console.SafeConsole(stderr=True, force_terminal=True, width=100)
    )
    with console.progress_bar("erm on dir[/x]y", 10) as advance:
        advance(5)


def test_failures_name_method_sources_and_reason(tmp_path, wide, capsys):
    run = plan_run("spirals", "erm", target="turn0", settings={"steps": 5})
    failure = Failure(run, "no [bold]luck", "trace")
    console.print_outcomes([failure], Store(tmp_path), output_format="console", rules=["sources"])
    said = capsys.readouterr().err
    assert "erm on turn10, turn20, turn30, trial 0, draw 0: no [bold]luck" in said


def test_the_line_before_a_benchmark_names_network_size_and_weights(monkeypatch, capsys):
    monkeypatch.setattr(console, "err", console.SafeConsole(stderr=True, width=20))
    run = plan_run("spirals", "erm", target="turn0", settings={"steps": 5})
    network = {"backbone": "timm:resnet18", "size": 64, "weights": "/away/mine.safetensors"}
    console.print_plan([replace(run, role="base"), replace(run, **network)], done=1)
    assert capsys.readouterr().err == (
        "2 runs (1 already in the store): timm:resnet18 at 64 px from weights mine.safetensors, "
        "5 steps of 3 × 32 samples\n"
    )


def test_no_table_is_explained(tmp_path, wide, capsys):
    run = plan_run("spirals", "erm", target="turn0", settings={"steps": 5})
    record = execute(run, Store(tmp_path))
    console.print_outcomes(
        [record], Store(tmp_path), output_format="console", rules=["left-out-source"]
    )
    assert "no table" in capsys.readouterr().err


def test_the_same_note_is_said_once(wide, capsys):
    notes = console.NoteHandler()
    for message in ("left out: one", "left out: two", "left out: one"):
        notes.emit(logging.LogRecord("afield", logging.WARNING, "", 0, message, None, None))
    assert capsys.readouterr().err.splitlines() == ["left out: one", "left out: two"]


@pytest.mark.parametrize("terminal", [True, False])
def test_a_store_out_of_reach_ends_no_work(tmp_path, monkeypatch, terminal):
    class Away(Store):
        def done(self, keys=None):
            raise DataError("s3://there: cannot be read (no route)")

    monkeypatch.setattr(
        console, "err", console.SafeConsole(file=io.StringIO(), force_terminal=terminal)
    )
    monkeypatch.setattr(console, "REFRESH_SECONDS", 0.05)
    monkeypatch.setattr(console, "LOG_SECONDS", 0.05)
    plan = Plan(("erm-0",), 0, "afield bench", hostname(), os.getpid(), 0.0)
    message = "the store cannot be read at the moment"

    def outcomes():
        yield 0
        wait_until(lambda: message in console.err.file.getvalue())
        yield 1

    assert list(console.follow_outcomes(outcomes(), Away(tmp_path), plan)) == [0, 1]


def test_control_characters_in_names_do_not_reach_the_terminal():
    shown = io.StringIO()
    terminal = console.SafeConsole(file=shown, force_terminal=True, width=60)
    table = Table("name")
    table.add_row(Text("a\x1b[2Jb\x07\x9bc"))
    terminal.print(table)
    terminal.print("x\x1b]0;title\x07y", markup=False)
    text = re.sub(r"\x1b\[[0-9;]*m", "", shown.getvalue())
    assert "\x1b" not in text
    assert "a\ufffd[2Jb" in text
    assert not {"\x07", "\x9b"} & set(text)


def test_codes_of_emoji_in_names_stay_as_they_are():
    for terminal in (console.out, console.err):
        with terminal.capture() as shown:
            terminal.say(":x: a.csv")
            terminal.print(Table("name :smile:", title=":x:"))
        assert shown.get().count(":x:") == 2
        assert ":smile:" in shown.get()
