"""Findings that are kept in a store."""

import json
import re
from pathlib import Path

import pytest

from afield.reporting.findings import PNG_SIGNATURE, finding_path, keep, kept_findings


@pytest.fixture
def runs(tmp_path):
    """Two folders of runs in a store."""
    folders = [tmp_path / "runs" / key for key in ("erm-01", "vrex-02")]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "record.json").write_text("{}")
    return folders


def keep_image(name, paths, summary="x", settings=None, content=PNG_SIGNATURE):
    picture = finding_path(name, paths, settings or {})
    picture.parent.mkdir(exist_ok=True)
    picture.write_bytes(content)
    keep(picture, summary, name, paths, settings or {})
    return picture


def test_a_finding_is_kept_in_the_store_of_its_run(runs, monkeypatch):
    store = runs[0].parent
    assert finding_path("agreement", runs[:1], {}) == store / "diagnostics" / "agreement-erm-01.png"
    assert finding_path("sensitivity", [store], {}) == store / "diagnostics" / "sensitivity.png"
    monkeypatch.chdir(runs[0])
    here = finding_path("agreement", [Path()], {})
    assert here.resolve() == store / "diagnostics" / "agreement-erm-01.png"


def test_other_runs_and_settings_have_another_name(runs):
    names = {
        finding_path("loss_surface", runs[:1], {}),
        finding_path("loss_surface", runs, {}),
        finding_path("loss_surface", runs[:1], {"points": 3}),
        finding_path("loss_surface", runs[:1], {"points": 4}),
        finding_path("agreement", runs[:1], {}),
    }
    assert len(names) == 5
    stems = [re.sub("[0-9a-f]{6}$", "#", name.stem) for name in names]
    assert stems.count("loss_surface-erm-01-#") == 3
    assert finding_path("loss_surface", runs, {}) == finding_path("loss_surface", runs, {})


def test_what_is_kept_is_found_again(runs):
    keep_image("agreement", runs[:1], "mean cosine: 0.1", {"samples": 3})
    keep_image("sensitivity", [runs[0].parent], "best at 3")
    first, second = kept_findings(runs[0].parent)
    assert (first[1].diagnostic, first[1].told) == ("agreement", "mean cosine: 0.1")
    assert (list(first[1].runs), first[1].settings) == (["erm-01"], {"samples": "3"})
    assert (second[1].diagnostic, list(second[1].runs)) == ("sensitivity", [])
    assert kept_findings(runs[0]) == []


@pytest.mark.parametrize("broken", ["picture", "json", "missing", "other"])
def test_what_cannot_be_read_is_skipped_with_a_warning(runs, broken, caplog):
    picture = keep_image("agreement", runs[:1])
    whole = keep_image("patterns", runs[:1])
    if broken == "picture":
        picture.write_bytes(b"<svg onload='alert(1)'/>")
    elif broken == "missing":
        picture.unlink()
    else:
        content = "{" if broken == "json" else json.dumps({"diagnostic": 3})
        picture.with_suffix(".json").write_text(content)
    assert [path for path, _ in kept_findings(runs[0].parent)] == [whole]
    assert "skipped " in caplog.text
