"""``afield recipe``: lists, shows, runs and continues."""

import pytest

TOML = """
title = "two turns"
reproduces = "approximate"
differs = "the data"
after = "afield report STORE"
[options]
dataset = "spirals"
targets = ["turn0"]
trials = 1
steps = 100
[[parts]]
methods = ["erm", "vrex"]
[[parts.numbers]]
columns = ["turn0"]
rows.erm = [99.0]
rows.vrex = [99.0]
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "turns.toml"
    path.write_text(TOML)
    return path


def test_list_names_all_tables(afield):
    code, out, _ = afield("recipe", "list")
    assert code == 0
    assert sum("_table" in line for line in out.splitlines()) == 28


def test_show_says_what_it_costs(afield, file):
    code, out, _ = afield("recipe", "show", file, "--scale", 0.5)
    assert code == 0
    assert "two turns [steps × 0.5]" in out
    assert "runs: 2, 100 training steps" in out
    assert "time: about" in out


@pytest.mark.slow
def test_run_shows_the_paper_beside_ours_and_continues(afield, file, tmp_path):
    store = tmp_path / "store"
    words = ("recipe", "run", file, "--scale", 0.5, "--store", store, "--workers", 1)
    code, first, _ = afield(*words, "--methods", "erm")
    assert code == 0
    assert "methods erm only" in first
    code, out, err = afield(*words)
    assert code == 0
    assert "2 runs (1 already in the store)" in err
    assert f"next: afield report {store}" in err
    assert "99 → " in out
    assert "[steps × 0.5]" in out
    assert "two turns [steps × 0.5]" in (store / "paper.md").read_text()
    code, again, _ = afield(
        "sweep", file, "--store", tmp_path / "other", "--format", "csv", "--workers", 1
    )
    assert code == 0
    assert again.startswith("part,rule,row,column,paper,ours")


def test_missing_data_are_one_line(afield, tmp_path, monkeypatch):
    monkeypatch.setenv("AFIELD_DATA", str(tmp_path))
    code, _, err = afield("recipe", "run", "dmg_table2", "--store", tmp_path / "store")
    assert code == 2
    assert len(err.strip().splitlines()) == 1
    assert "needs data that are not here: pacs" in err
    code, _, err = afield("recipe", "run", "score_table4")
    assert (code, "has no runs" in err) == (2, True)
