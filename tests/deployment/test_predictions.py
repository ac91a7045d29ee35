"""Predictions in tables and files: CSV, JSON lines and Parquet."""

import csv
import io
import json
import sys
from functools import partial

import pandas as pd
import pytest

from afield.deployment.predictions import (
    Columns,
    Prediction,
    check_output_file,
    csv_lines,
    safe_name,
    write_predictions,
)
from afield.errors import SpecError
from afield.files import check_output

GOOD = Prediction("a.png", "cup", 0.75, 1.5, 40.0, (0.75, 0.25))
DOUBTFUL = Prediction('b "x", y\n.png', "pot", 0.5, 9.0, 99.0, (0.5, 0.5))
BROKEN = Prediction("c.png", error="broken, really")
EVERY = [GOOD, DOUBTFUL, BROKEN]
COLUMNS = Columns(threshold=0.6, classes=("cup", "pot"))


def test_a_csv_has_a_row_for_every_file_whatever_it_is_called():
    text = "".join(csv_lines(map(COLUMNS.row, EVERY), COLUMNS))
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    assert [row["file"] for row in rows] == [answer.file for answer in EVERY]
    assert [row["class"] for row in rows] == ["cup", "pot", ""]
    assert [row["abstain"] for row in rows] == ["no", "yes", ""]
    assert [row["error"] for row in rows] == ["", "", "broken, really"]
    assert float(rows[0]["p(pot)"]) == 0.25
    assert rows[2]["p(pot)"] == ""


@pytest.mark.parametrize("name", ["=cmd|x.png", "+1.png", "-1.png", "@a.png", "\ta.png"])
def test_no_spreadsheet_takes_a_name_for_a_formula(name):
    assert safe_name(name) == f"./{name}"


def test_no_name_sends_commands_to_a_terminal_that_shows_the_file():
    odd = Prediction("a\x1b[2J.png", "cup\x9b", 1.0, error="no \x07 bell\r")
    text = "".join(csv_lines([Columns().row(odd)], Columns()))
    assert r"a\x1b[2J.png,cup\x9b" in text
    assert r"no \x07 bell\x0d" in text


def test_a_name_that_is_not_unicode_can_be_written(tmp_path):
    odd = b"caf\xe9.png".decode("utf-8", "surrogateescape")
    write_predictions([Prediction(odd, "cup", 1.0)], tmp_path / "out.csv", Columns())
    assert "caf\\xe9.png" in (tmp_path / "out.csv").read_text()


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_all_forms_say_the_same(tmp_path, suffix):
    out = tmp_path / f"out{suffix}"
    write_predictions(EVERY, out, COLUMNS)
    read = {
        ".csv": pd.read_csv,
        ".jsonl": lambda path: pd.read_json(path, lines=True),
        ".parquet": pd.read_parquet,
    }
    frame = read[suffix](out)
    assert list(frame.columns) == COLUMNS.names
    assert frame["file"].tolist() == [answer.file for answer in EVERY]
    assert frame["confidence"].tolist()[:2] == [0.75, 0.5]
    assert frame["confidence"].isna().tolist() == [False, False, True]
    assert frame["p(cup)"].tolist()[:2] == [0.75, 0.5]
    assert frame["error"].tolist()[2] == "broken, really"


def test_json_lines_have_nothing_where_nothing_is_known(tmp_path):
    write_predictions([BROKEN], tmp_path / "out.jsonl", Columns())
    (line,) = (tmp_path / "out.jsonl").read_text().splitlines()
    assert json.loads(line)["class"] is None


def test_what_is_too_far_away_goes_to_a_person_however_sure_it_is():
    beyond = Prediction("d.png", "cup", 0.99, 30.0, 100.0, too_far=True)
    for threshold in (0.0, 0.6):
        assert Columns(threshold).row(beyond)["abstain"] is True
    assert Columns(0.0).row(DOUBTFUL)["abstain"] is False
    assert Columns(0.6).row(GOOD)["abstain"] is False


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_sets_have_the_most_probable_class_first(tmp_path, suffix):
    answer = Prediction("a.png", "pot", 0.6, probabilities=(0.3, 0.6, 0.1))
    columns = Columns(sets=(("cup", "pot", "urn"), (0.75, 0.95)))
    assert columns.row(BROKEN)["set"] is None
    write_predictions([answer, BROKEN], tmp_path / f"out{suffix}", columns)
    read = {".csv": pd.read_csv, ".jsonl": partial(pd.read_json, lines=True)}
    frame = read.get(suffix, pd.read_parquet)(tmp_path / f"out{suffix}")
    assert list(frame.columns) == columns.names
    cells = [frame["set"][0], frame["set_worst"][0]]
    expected = [["pot", "cup"], ["pot", "cup", "urn"]]
    assert (
        [list(c) for c in cells] == expected
        if suffix != ".csv"
        else cells
        == [
            "pot | cup",
            "pot | cup | urn",
        ]
    )


def test_columns_that_were_not_asked_for_are_not_there():
    fixed = ["file", "class", "confidence", "distance", "percentile", "strangeness", "error"]
    assert Columns().names == fixed


def failing():
    yield GOOD
    raise OSError(5, "the disk is gone")


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_what_fails_in_the_middle_leaves_no_file(tmp_path, suffix):
    (tmp_path / f"out{suffix}").write_text("earlier")
    with pytest.raises(SpecError, match="the disk is gone"):
        write_predictions(failing(), tmp_path / f"out{suffix}", COLUMNS)
    assert [path.name for path in tmp_path.iterdir()] == [f"out{suffix}"]
    assert (tmp_path / f"out{suffix}").read_text() == "earlier"


def test_places_that_are_impossible_are_refused_before_any_work(tmp_path):
    with pytest.raises(SpecError, match=r"\.csv, \.jsonl, \.parquet"):
        check_output_file(tmp_path / "out.xlsx")
    (tmp_path / "out.csv").mkdir()
    with pytest.raises(SpecError, match="is a folder"):
        check_output(tmp_path / "out.csv", overwrite=True)


def test_a_package_that_is_missing_is_reported(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(SpecError, match=r"pip install 'afield\[parquet\]'"):
        check_output_file(tmp_path / "out.parquet")


def test_many_rows_are_written_in_groups(tmp_path):
    write_predictions([GOOD] * 5000, tmp_path / "out.parquet", COLUMNS)
    assert len(pd.read_parquet(tmp_path / "out.parquet")) == 5000
