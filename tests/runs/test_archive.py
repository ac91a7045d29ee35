"""Archives: the same keys and tables as the store, in one file without paths."""

import gzip
from dataclasses import replace

import pandas as pd
import pytest

import afield
from afield.errors import DataError, SpecError
from afield.reporting.page import write_report
from afield.runs.archive import write_archive
from afield.runs.selection import RULES
from afield.runs.store import Store, open_store
from tests.runs.records import RUN, record_of
from tests.stores import record


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Store:
    place = tmp_path_factory.mktemp("store")
    afield.bench(
        "spirals", ["erm", "vrex"], trials=2, steps=40, rules=("all",), store=place, every=10
    )
    return Store(place)


def test_an_archive_has_the_keys_and_the_tables_of_its_store(store, tmp_path):
    path = tmp_path / "records.jsonl.gz"
    assert write_archive(store, path) == len(list(store))
    archived = list(open_store(path))
    assert [record.run.key for record in archived] == [record.run.key for record in store]
    tables = (afield.tabulate(records) for records in (archived, list(store)))
    pd.testing.assert_frame_equal(*tables, rtol=1e-8)


def test_without_a_rule_that_reads_every_checkpoint_two_checkpoints_stay(tmp_path):
    curves = {"art": [0.5, 0.9, 0.6, 0.7], "photo": [0.5, 0.6, 0.9, 0.7], "sketch": [0.5] * 4}
    records = [
        record(target, [0.1, 0.2, 0.3, 0.4], of_sources, rules=("sources", "target"))
        for target, of_sources in curves.items()
    ]
    path = tmp_path / "records.jsonl.gz"
    write_archive(records, path)
    archived = list(open_store(path))
    assert [len(each.checkpoints) for each in archived] == [2, 2, 2]
    for rule in ("sources", "target"):
        for target in curves:
            before, after = (RULES[rule].pick(each, target) for each in (records, archived))
            assert before.score == after.score


def test_equal_records_give_equal_bytes_and_no_path_remains(tmp_path):
    run = replace(
        RUN,
        dataset="/home/ada/photos.npz",
        data="0123",
        weights="/home/ada/net.safetensors",
        start="4567",
        folder="/home/ada/photos",
        given={"weights": "/home/ada/net.safetensors"},
    )
    record = replace(record_of(), run=run)
    paths = [tmp_path / name for name in ("a.jsonl.gz", "b.jsonl.gz")]
    for path in paths:
        write_archive([record], path)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert b"/home" not in gzip.decompress(paths[0].read_bytes())
    (archived,) = open_store(paths[0])
    assert archived.run.key == run.key


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"not gzip", "not a readable archive"),
        (gzip.compress(b"{}\n", mtime=0)[:-4], "not a readable archive"),
        (gzip.compress(b"{}\n", mtime=0), "line 1: not a record of afield"),
        (gzip.compress(b"[1]\n", mtime=0), "line 1: not a record of afield"),
    ],
    ids=["no gzip", "cut", "empty record", "no record"],
)
def test_a_broken_archive_is_named(tmp_path, content, message):
    path = tmp_path / "broken.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        list(open_store(path))


def test_an_archive_can_only_be_read(tmp_path):
    path = tmp_path / "records.jsonl.gz"
    write_archive([record_of()], path)
    with pytest.raises(SpecError, match="can only be read; give --store"):
        open_store(path).prepare()
    with pytest.raises(SpecError, match="can only be read; give --out"):
        write_report(path)
    assert write_report(path, tmp_path / "page.html").endswith("page.html")


def test_the_name_of_an_archive_is_checked(tmp_path):
    with pytest.raises(SpecError, match=r"ends in \.jsonl\.gz"):
        write_archive([record_of()], tmp_path / "records.zip")
