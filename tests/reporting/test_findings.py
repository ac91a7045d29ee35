"""Findings that are kept in a store."""

import json
from pathlib import Path

import pytest

from afield.reporting.findings import PNG, exhibits, kept_at, note


@pytest.fixture
def runs(tmp_path):
    """Two folders of runs in a store."""
    folders = [tmp_path / "runs" / key for key in ("erm-01", "vrex-02")]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "record.json").write_text("{}")
    return folders


def keep(name, paths, told="x", settings=None, content=PNG):
    picture = kept_at(name, paths, settings or {})
    picture.parent.mkdir(exist_ok=True)
    picture.write_bytes(content)
    note(picture, told, name, paths, settings or {})
    return picture


def test_a_finding_is_kept_in_the_store_of_its_run(runs, monkeypatch):
    store = runs[0].parent
    assert kept_at("agreement", runs[:1], {}) == store / "diagnostics" / "agreement-erm-01.png"
    assert kept_at("sensitivity", [store], {}) == store / "diagnostics" / "sensitivity.png"
    monkeypatch.chdir(runs[0])
    here = kept_at("agreement", [Path()], {})
    assert here.resolve() == store / "diagnostics" / "agreement-erm-01.png"


def test_other_runs_and_settings_have_another_name(runs):
    names = {
        kept_at("loss_surface", runs[:1], {}),
        kept_at("loss_surface", runs, {}),
        kept_at("loss_surface", runs[:1], {"points": 3}),
        kept_at("loss_surface", runs[:1], {"points": 4}),
        kept_at("agreement", runs[:1], {}),
    }
    assert len(names) == 5
    assert kept_at("loss_surface", runs, {}) == kept_at("loss_surface", runs, {})


def test_what_is_kept_is_found_again(runs):
    keep("agreement", runs[:1], "mean cosine: 0.1", {"samples": 3})
    keep("sensitivity", [runs[0].parent], "best at 3")
    first, second = exhibits(runs[0].parent)
    assert (first[1].diagnostic, first[1].told) == ("agreement", "mean cosine: 0.1")
    assert (list(first[1].runs), first[1].settings) == (["erm-01"], {"samples": "3"})
    assert (second[1].diagnostic, list(second[1].runs)) == ("sensitivity", [])
    assert exhibits(runs[0]) == []


@pytest.mark.parametrize("broken", ["picture", "json", "missing", "other"])
def test_what_cannot_be_read_is_left_out_with_a_word(runs, broken, caplog):
    picture = keep("agreement", runs[:1])
    whole = keep("patterns", runs[:1])
    if broken == "picture":
        picture.write_bytes(b"<svg onload='alert(1)'/>")
    elif broken == "missing":
        picture.unlink()
    else:
        content = "{" if broken == "json" else json.dumps({"diagnostic": 3})
        picture.with_suffix(".json").write_text(content)
    assert [path for path, _ in exhibits(runs[0].parent)] == [whole]
    assert "left out: " in caplog.text
