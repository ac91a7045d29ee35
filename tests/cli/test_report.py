"""`afield report`, and the page that a bench leaves."""

from afield.experiments.store import Store
from afield.reporting import page
from tests.stores import benchmark_records, kept

QUICK = ("--steps", "10", "--workers", "1", "--trials", "2")


def test_report_writes_one_page_and_says_where(afield, tmp_path):
    kept(Store(tmp_path / "runs"), benchmark_records([[0.5, 0.6, 0.7]]))
    code, out, err = afield("report")
    assert (code, out, err) == (0, "report in runs/report.html\n", "")
    code, out, _ = afield("report", "runs", "--out", "a/page.html")
    assert (code, out) == (0, "report in a/page.html\n")
    pages = [(tmp_path / name).read_text() for name in ("runs/report.html", "a/page.html")]
    assert pages[0] == pages[1]


def test_a_store_without_records_is_one_line(afield):
    code, _, err = afield("report", "nowhere")
    assert code == 2
    assert err == "error: nowhere: no records there; run `afield bench --store nowhere`\n"


def test_a_bench_leaves_a_page_in_its_store(afield, tmp_path):
    code, out, err = afield("bench", "spirals", "--methods", "erm", *QUICK)
    assert code == 0
    assert "report in runs/report.html" in err
    assert "report in" not in out
    assert "spirals" in (tmp_path / "runs" / "report.html").read_text()


def test_a_page_that_cannot_be_made_costs_neither_table_nor_exit_code(afield, monkeypatch):
    def broken(*_):
        raise ZeroDivisionError("a bug\nof ours")

    monkeypatch.setattr(page, "write_report", broken)
    code, out, err = afield("bench", "spirals", "--methods", "erm", *QUICK)
    assert code == 0
    assert "erm" in out
    assert err.endswith("note: no report: a bug of ours; try `afield report runs`\n")
