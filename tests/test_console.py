from rich.console import Console

from afield import console
from afield.jobs import planned
from afield.record import Failure
from afield.runner import execute
from afield.store import Store


def test_a_title_with_markup_is_shown_as_it_is(monkeypatch):
    monkeypatch.setattr(console, "err", Console(stderr=True, force_terminal=True, width=100))
    with console.bar("erm on dir[/x]y", 10) as advance:
        advance(5)


def test_failures_name_method_sources_and_reason(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(console, "err", Console(stderr=True, width=200))
    run = planned("spirals", "erm", target="turn0", settings={"steps": 5})
    failure = Failure(run, "no [bold]luck", "trace")
    assert not console.print_outcomes([failure], Store(tmp_path), form="console", rules=["sources"])
    said = capsys.readouterr().err
    assert "erm on turn10, turn20, turn30, trial 0, draw 0: no [bold]luck" in said


def test_no_table_is_explained(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(console, "err", Console(stderr=True, width=200))
    run = planned("spirals", "erm", target="turn0", settings={"steps": 5})
    record = execute(run, Store(tmp_path))
    assert console.print_outcomes(
        [record], Store(tmp_path), form="console", rules=["left-out-source"]
    )
    assert "no table" in capsys.readouterr().err
