"""`afield diagnose` as a user types it."""

import json

import pandas as pd
import pytest


@pytest.fixture
def run(afield, tmp_path):
    """The name of a finished run."""
    afield("train", "spirals", "erm", "--target", "turn0", "--steps", "10")
    (folder,) = tmp_path.glob("runs/erm-*")
    return folder.name


def test_it_writes_a_figure_and_its_numbers_and_prints_a_summary(afield, tmp_path, run):
    words = ("--set", "samples=20", "--out", "a/b.svg")
    code, out, err = afield("diagnose", "agreement", f"runs/{run}", *words)
    assert code == 0
    assert out.startswith("mean cosine of gradients: ")
    assert err == "figure in a/b.svg, numbers in a/b.csv\n"
    assert (tmp_path / "a" / "b.svg").read_text().startswith("<?xml")
    assert len(pd.read_csv(tmp_path / "a" / "b.csv")) == 16


def test_without_a_file_it_is_kept_in_the_store_and_shown_in_its_report(afield, tmp_path, run):
    code, out, err = afield("diagnose", "agreement", f"runs/{run}", "--set", "samples=20")
    assert code == 0
    (figure,) = tmp_path.glob(f"runs/diagnostics/agreement-{run}-*.png")
    kept = figure.relative_to(tmp_path)
    assert err == f"figure in {kept}, numbers in {kept.with_suffix('.csv')}\n"
    assert json.loads(figure.with_suffix(".json").read_text())["told"] == out.strip()
    assert afield("report")[0] == 0
    assert out.strip() in (tmp_path / "runs" / "report.html").read_text()
