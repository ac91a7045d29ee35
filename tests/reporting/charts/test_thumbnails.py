"""Thumbnails in the report: those that the store keeps, if they can be read."""

import json
from pathlib import Path

import pytest

from afield.reporting.charts.samples import MAX_BYTES, kept_thumbnails
from afield.reporting.page import write_report
from afield.runs.run_files import thumbnail_file
from afield.runs.store import Store
from tests.stores import benchmark_records, kept

STRIP = "UklGRgAAAABXRUJQ"


def a_store(tmp_path, content):
    records = benchmark_records([[0.5, 0.6, 0.7]])
    kept(Store(tmp_path), records)
    (tmp_path / thumbnail_file(records[0].run)).write_text(content)
    return records


def test_the_page_shows_the_strip_of_every_domain_unless_it_is_not_to(tmp_path):
    a_store(tmp_path, json.dumps({"photo<b>": STRIP}))
    text = Path(write_report(tmp_path)).read_text()
    assert f'src="data:image/webp;base64,{STRIP}" alt="Images of photo&lt;b&gt;"' in text
    text = Path(write_report(tmp_path, thumbnails=False)).read_text()
    assert STRIP not in text


@pytest.mark.parametrize(
    "content",
    [
        "no json",
        "[]",
        '{"a": 3}',
        '{"a": "x\\" onerror=\\"alert(1)"}',
        json.dumps({"a": "A" * MAX_BYTES}),
        "[" * 100_000,
    ],
)
def test_what_is_no_thumbnail_is_skipped_with_a_note(tmp_path, content, caplog):
    records = a_store(tmp_path, content)
    assert kept_thumbnails([tmp_path], records) == {}
    assert "not readable thumbnails" in caplog.text


def test_records_of_other_data_have_none(tmp_path):
    records = a_store(tmp_path, json.dumps({"a": STRIP}))
    assert list(kept_thumbnails([tmp_path], records)) == [records[0].run.dataset]
    assert kept_thumbnails([tmp_path / "other"], records) == {}
