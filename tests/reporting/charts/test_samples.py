"""Worst classes and the confusion matrix of one method."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from afield.reporting.charts.samples import MAX_BYTES, class_errors, describe_data, kept_thumbnails
from afield.reporting.page import write_report
from afield.reporting.results import group_records
from afield.runs.run_files import thumbnail_file
from afield.runs.store import Store
from afield.training.scores import Confusion
from tests.stores import benchmark_records, kept

# Class a is always right; half of class b is taken for a.
HALF = Confusion(2, cells=(0, 2, 3), counts=(10, 4, 4))


def confused(records, confusion=HALF, **fields):
    def with_matrix(record):
        points = tuple(
            replace(
                point,
                scores={
                    name: replace(each, main=replace(each.main, confusion=confusion))
                    if each.main
                    else each
                    for name, each in point.scores.items()
                },
            )
            for point in record.checkpoints
        )
        return replace(record, checkpoints=points, **fields)

    (results,) = group_records([with_matrix(record) for record in records])
    return class_errors(results, "sources", "erm")


def test_counts_of_all_trials_and_domains_are_added():
    result = confused(benchmark_records([[0.5] * 3] * 2), class_names=("a", "b"))
    (worst,) = result.worst
    assert (worst.name, worst.accuracy, worst.samples) == ("b", 0.5, 6 * 8)
    assert (worst.taken_for, worst.share) == ("a", 0.5)
    assert result.shares == [[1.0, 0.0], [0.5, 0.5]]


def test_without_names_classes_are_numbered():
    assert list(confused(benchmark_records([[0.5] * 3])).names) == ["class 0", "class 1"]


@pytest.mark.parametrize(
    "confusion", [None, Confusion(2, samples=(1, 1), predictions=(1, 1), hits=(1, 1))]
)
def test_without_matrices_there_is_nothing_to_show(confusion):
    assert confused(benchmark_records([[0.5] * 3]), confusion) is None


def described(records):
    (results,) = group_records(records)
    return describe_data(results).replace("\u2068", "").replace("\u2069", "")


def test_domains_have_their_samples_and_the_network_its_weights():
    network = {"backbone": "timm:x", "weights": "/a/b/x.pt", "start": "abcdefgh"}
    records = benchmark_records([[0.5] * 3], **network)
    named = [replace(record, class_names=("a", "b")) for record in records]
    assert described(named) == (
        "3 domains: art 200, photo 200, sketch 200; 2 classes; timm:x from x.pt [abcdef]."
    )


def test_of_many_domains_only_the_range_is_stated():
    domains = tuple(f"d{n:02}" for n in range(20))
    records = benchmark_records([[0.5] * 20], domains=domains)
    assert described(records).startswith("20 domains of 200 to 200 samples; small:cnn from random")


def test_texts_have_their_median_length_and_how_many_are_cut():
    records = benchmark_records([[0.5] * 3], backbone="small:text", tokens=64)
    lengths = [
        replace(record, truncated=7, median_tokens=30 + number)
        for number, record in enumerate(records)
    ]
    assert "; texts of 30 to 32 tokens (median), 7 cut at 64; small:text" in described(lengths)
    assert "; none cut at 64; small:text" in described(records)
    features = [
        replace(record, truncated=7, median_tokens=30, embedded_tokens=64)
        for record in benchmark_records([[0.5] * 3], backbone="small:mlp")
    ]
    assert "; features of texts of 30 tokens (median), 7 cut at 64; small:mlp" in described(
        features
    )
    # A merged model counts no texts.
    assert "7 cut at 64; small:text" in described([*lengths, *records])


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
    assert kept_thumbnails([tmp_path], a_store(tmp_path, content)) == {}
    assert "not readable thumbnails" in caplog.text


def test_records_of_other_data_have_none(tmp_path):
    records = a_store(tmp_path, json.dumps({"a": STRIP}))
    assert list(kept_thumbnails([tmp_path], records)) == [records[0].run.dataset]
    assert kept_thumbnails([tmp_path / "other"], records) == {}
