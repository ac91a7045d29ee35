"""What `afield.bench` returns to Python: a list that prints as its table."""

import inspect
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path

import pytest

from afield.data.training_settings import Training
from afield.errors import AfieldError
from afield.progress import progress, report_progress_to, show_progress
from afield.reporting.bench_options import BenchOptions
from afield.reporting.bench_result import BenchResult
from afield.reporting.benchmarking import bench
from afield.studies.benchmark import Benchmark


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    store = tmp_path_factory.mktemp("bench") / "runs"
    return bench("spirals", ["erm", "vrex"], trials=2, steps=20, store=store)


def test_it_prints_as_the_table_of_the_terminal_in_80_columns(result, afield, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = repr(result)
    assert max(map(len, shown.splitlines())) <= 80
    _, printed, _ = afield("table", str(result.store.where()), width=80)
    *table, summary = shown.splitlines()
    assert [line.rstrip() for line in printed.splitlines()] == table
    assert summary == f"16 records in {result.store.where()}"
    page = result._repr_html_()
    assert page.count("<tr>") == 3
    assert "vrex" in page


def test_it_is_a_list_of_records_with_table_report_and_best_row(result, tmp_path):
    assert len(result) == 16
    assert result[0].run.method == "erm"
    frame = result.table()
    assert set(frame["rule"]) == {"sources"}
    assert set(result.table(rules=["target"])["rule"]) == {"target"}
    means = frame[frame["domain"] == "mean"].set_index("method")["accuracy"]
    assert (result.best.method, result.best.accuracy) == (means.idxmax(), means.max())
    assert repr(result.best).startswith(f"spirals: {means.idxmax()} ")
    with pytest.raises(AfieldError, match="no results of 'spiral'; did you mean 'spirals'"):
        result.best_of("spiral")
    assert "spirals" in Path(result.report()).read_text(encoding="utf-8")
    with pytest.raises(AfieldError, match="of no store"):
        BenchResult(result).report()
    assert repr(BenchResult()) == "0 records"


def test_the_plot_has_a_row_for_each_method_and_all_means(result):
    (axes,) = result.plot().axes
    assert [label.get_text() for label in axes.get_yticklabels()][-1] == result.best.method
    means = axes.containers[0].lines[0].get_xdata()
    assert max(means) == pytest.approx(100 * result.best.accuracy)


def test_runs_and_records_are_short_lines(result):
    record = result[0]
    assert repr(record.run) == (
        f"<Run {record.run.key}: spirals, trained on turn10, turn20, turn30; 20 steps>"
    )
    assert repr(record) == f"<Record {record.run.key}: without turn0, 20 checkpoints>"


def test_editors_complete_every_option_of_a_benchmark_and_every_shared_setting():
    given = {"dataset", "methods", "store"}
    known = {each.name for each in (*fields(Benchmark), *fields(Training))} - given
    assert set(BenchOptions.__annotations__) == known
    assert known < set(inspect.signature(bench).parameters)


def test_progress_is_shown_to_a_terminal_unless_it_is_not_wanted(monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with show_progress(), progress("counting", 3) as advance:
        advance(2)
    assert "counting" in capsys.readouterr().err
    with show_progress(quiet=True), show_progress(), progress("counting", 3) as advance:
        advance(2)
    assert capsys.readouterr().err == ""
    heard = []

    def listen(task, total):
        heard.append((task, total))
        return nullcontext(lambda _: None)

    # Another listener, such as the command line's, stays the only one.
    with report_progress_to(listen), show_progress(), progress("counting", 3):
        pass
    assert heard == [("counting", 3)]
    assert capsys.readouterr().err == ""
