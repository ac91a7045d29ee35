"""`afield table`, `power`, `report` and `export-domainbed`, and the report that a bench leaves."""

import io
import json
import os
import re
import stat

import pandas as pd
import pytest

from afield.reporting import page
from afield.runs.store import Store
from tests.files import pictures
from tests.stores import benchmark_records, kept, noisy

QUICK = ("--methods", "erm", "--steps", "10", "--workers", "1", "--trials", "2")


@pytest.fixture
def compared(tmp_path):
    """A store in which vrex is better than erm."""
    erm, vrex = (
        benchmark_records(noisy(mean, 3, 3, seed=seed), method=method)
        for method, mean, seed in (("erm", 0.7, 1), ("vrex", 0.8, 2))
    )
    kept(Store(tmp_path / "runs"), [*erm, *vrex])


def test_table_prints_what_the_bench_printed_in_any_format(afield, tmp_path):
    code, out, _ = afield("bench", "spirals", *QUICK, "--format", "csv")
    assert code == 0
    frame = pd.read_csv(io.StringIO(out))
    assert set(frame["rule"]) == {"sources"}
    assert frame["accuracy"].between(0, 1).all()
    code, again, err = afield("table", "runs", "--format", "csv")
    assert (code, again, err) == (0, out, "8 records in runs\n")
    for format_, sign in (("console", "turn30"), ("md", "| method |"), ("latex", r"\toprule")):
        code, out, _ = afield("table", "--format", format_, "--rules", "target")
        assert code == 0
        assert sign in out


def test_below_the_table_is_one_line_per_rule_on_who_leads(afield, compared):
    line = "vrex leads with 80.1\u00a0%, 9.7 points above erm. That is more than chance"
    assert "target" not in afield("table")[1]
    code, out, _ = afield("table", "--rules", "all")
    assert code == 0
    assert out.index(f"\nsources: {line}") < out.index(f"\ntarget: {line}")
    assert out.index("training-domain validation") < out.index(line)
    assert line.replace("\u00a0", " ") in afield("table", "--format", "md")[1]
    assert f"% {line}" in afield("table", "--format", "latex")[1]
    assert "leads" not in afield("table", "--format", "csv")[1]


def test_a_table_for_a_paper_has_the_columns_and_the_caption_that_are_typed(
    afield, refusal, compared
):
    words = ("table", "--format", "latex", "--columns", "worst,mean", "--caption", "Ours.")
    code, out, _ = afield(*words)
    assert code == 0
    assert r"method & worst & mean \\" in out
    assert r"\caption{Ours." in out
    code, out, _ = afield("table", "--columns", "mean", "--format", "md")
    assert code == 0
    assert "| method | mean |" in out
    assert "no column 'maen'; did you mean 'mean'" in refusal("table", "--columns", "maen")
    assert "--caption is for --format latex" in refusal("table", "--caption", "Ours")


def test_power_says_what_could_be_detected_and_what_a_point_takes(afield, refusal, compared):
    code, out, _ = afield("power", "runs")
    assert code == 0
    assert "things, training-domain validation" in out
    assert "trials for" in out
    text = " ".join(out.replace("\u00a0", " ").split())
    words = r"With 3 trials, a true difference of \d\.\d points is detected with a probability of"
    assert re.search(rf"{words} 80 %; one of 1 point takes \d+ trials\.", text)
    assert max(map(len, out.splitlines())) <= 80
    code, out, _ = afield("power", "runs", "--rule", "target", "--difference", "2.5")
    assert code == 0
    assert "oracle" in out
    assert "2.5 points" in out
    assert "training-domain" not in out
    assert "no rule 'nix'" in refusal("power", "runs", "--rule", "nix")


def test_power_of_one_trial_one_method_or_unfinished_runs_is_unknown(afield, tmp_path):
    erm = benchmark_records(noisy(0.7, 1, 3))
    vrex = benchmark_records(noisy(0.8, 1, 3, seed=2), method="vrex")
    kept(Store(tmp_path / "one"), [*erm, *vrex])
    assert "Cannot tell: two or more trials" in afield("power", "one")[1]
    kept(Store(tmp_path / "alone"), erm)
    assert "there is no comparison" in afield("power", "alone")[1]
    kept(Store(tmp_path / "part"), erm[:1])
    assert "No method has finished" in afield("power", "part")[1]


def test_report_writes_one_page_and_says_where(afield, tmp_path):
    kept(Store(tmp_path / "runs"), benchmark_records([[0.5, 0.6, 0.7]]))
    code, out, err = afield("report")
    assert (code, out, err) == (0, "report in runs/report.html\n", "")
    code, out, _ = afield("report", "runs", "--out", "a/page.html")
    assert (code, out) == (0, "report in a/page.html\n")
    pages = [(tmp_path / name).read_text() for name in ("runs/report.html", "a/page.html")]
    assert pages[0] == pages[1]


@pytest.mark.parametrize("command", [("report", "runs"), ("data", "check", "photos")])
def test_an_existing_file_is_replaced_only_by_force(afield, refusal, tmp_path, command):
    kept(Store(tmp_path / "runs"), benchmark_records([[0.5, 0.6, 0.7]]))
    pictures(tmp_path / "photos")
    thesis = tmp_path / "thesis.png"
    thesis.write_text("years of work")
    assert "exists already; give another name, or --force" in refusal(*command, "--out", thesis)
    assert thesis.read_text() == "years of work"
    assert afield(*command, "--out", thesis, "--force")[0] == 0
    assert thesis.read_bytes()[:6] != b"years "
    for empty in ("", "."):
        assert "not the name of a file" in refusal(*command, "--out", empty)


def test_a_report_for_a_device_leaves_the_device(afield, tmp_path):
    kept(Store(tmp_path / "runs"), benchmark_records([[0.5, 0.6, 0.7]]))
    null = tmp_path / "null"
    try:
        os.mknod(null, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("only root may make devices")
    assert afield("report", "runs", "--out", null)[0] == 0
    assert stat.S_ISCHR(null.stat().st_mode)


def test_a_metric_that_no_record_has_is_one_line(refusal, tmp_path):
    kept(Store(tmp_path / "runs"), benchmark_records([[0.5, 0.6, 0.7]]))
    assert "no groups were counted" in refusal("report", "--metric", "worst_group")


@pytest.mark.parametrize("difference", ["inf", "nan", "101"])
def test_a_difference_that_is_no_number_of_points_is_refused(afield, compared, difference):
    code, _, err = afield("power", "--difference", difference)
    assert code == 2
    assert "--difference" in err


def test_a_report_that_cannot_be_made_costs_neither_table_nor_exit_code(
    afield, monkeypatch, caplog
):
    def broken(*_, **__):
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


def test_table_shows_another_metric_and_the_mean_over_stores(afield, tmp_path):
    quick = (*QUICK[:-1], "1", "--quiet", "--format", "csv")
    code, out, err = afield("bench", "spirals", *quick, "--store", "a", "--metric", "macro_f1")
    assert code == 0, err
    assert set(pd.read_csv(io.StringIO(out))["metric"]) == {"macro_f1"}
    assert afield("bench", "rotated_digits", *quick, "--store", "b")[0] == 0
    code, out, err = afield("table", "a", "b", "--metric", "worst_class", "--format", "csv")
    assert (code, err) == (0, "10 records in a, b\n")
    frame = pd.read_csv(io.StringIO(out))
    overall = frame[(frame["dataset"] == "all datasets") & (frame["rule"] == "sources")]
    assert list(overall["domain"]) == ["spirals", "rotated_digits", "mean"]
    assert overall["accuracy"].iloc[2] == pytest.approx(overall["accuracy"].iloc[:2].mean())
    code, out, _ = afield("report", "a", "b", "--out", "all.html", "--metric", "macro_f1")
    assert (code, out) == (0, "report in all.html\n")


def test_groups_of_samples_without_names_are_refused_in_one_line(refusal, tmp_path):
    (tmp_path / "groups.csv").write_text("path,group\na,b\n")
    message = refusal("bench", "rotated_digits", *QUICK, "--group", "groups.csv")
    assert "the samples of rotated_digits have no file names" in message
