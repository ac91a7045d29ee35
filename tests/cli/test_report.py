"""`afield table`, `report` and `export-domainbed`, and the report that a bench leaves."""

import io
import json

import pandas as pd

from afield.experiments.store import Store
from afield.reporting import page
from tests.stores import benchmark_records, kept

QUICK = ("--methods", "erm", "--steps", "10", "--workers", "1", "--trials", "2")


def test_table_prints_what_the_bench_printed_in_any_format(afield, tmp_path):
    code, out, _ = afield("bench", "spirals", *QUICK, "--format", "csv")
    assert code == 0
    frame = pd.read_csv(io.StringIO(out))
    assert set(frame["rule"]) == {"sources", "target"}
    assert frame["accuracy"].between(0, 1).all()
    code, again, err = afield("table", "runs", "--format", "csv")
    assert (code, again, err) == (0, out, "8 records in runs\n")
    for format_, sign in (("console", "turn30"), ("md", "| method |"), ("latex", r"\toprule")):
        code, out, _ = afield("table", "--format", format_, "--rules", "target")
        assert code == 0
        assert sign in out


def test_report_writes_one_page_and_says_where(afield, tmp_path):
    kept(Store(tmp_path / "runs"), benchmark_records([[0.5, 0.6, 0.7]]))
    code, out, err = afield("report")
    assert (code, out, err) == (0, "report in runs/report.html\n", "")
    code, out, _ = afield("report", "runs", "--out", "a/page.html")
    assert (code, out) == (0, "report in a/page.html\n")
    pages = [(tmp_path / name).read_text() for name in ("runs/report.html", "a/page.html")]
    assert pages[0] == pages[1]


def test_a_report_that_cannot_be_made_costs_neither_table_nor_exit_code(
    afield, monkeypatch, caplog
):
    def broken(*_):
        raise ZeroDivisionError("a bug\nof ours")

    monkeypatch.setattr(page, "write_report", broken)
    code, out, _ = afield("bench", "spirals", *QUICK)
    assert code == 0
    assert "erm" in out
    assert "(a bug of ours); try again with `afield report runs`" in caplog.text


def test_export_writes_what_domainbed_reads(afield, tmp_path):
    kept(Store(tmp_path / "runs"), benchmark_records([[0.5, 0.6, 0.7]]))
    code, out, _ = afield("export-domainbed", "runs", "out", "--dataset", "RotatedMNIST")
    assert (code, out) == (0, "3 runs written to out\n")
    first, *rest = sorted((tmp_path / "out").iterdir())
    assert len(rest) == 2
    assert (first / "done").exists()
    line = json.loads((first / "results.jsonl").read_text().splitlines()[0])
    assert line["args"]["dataset"] == "RotatedMNIST"
