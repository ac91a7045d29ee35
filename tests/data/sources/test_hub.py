"""Datasets of the hub, read from a cache in the hub's layout; nothing is downloaded."""

import hashlib
import io
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from afield.data.inspection import get_dataset
from afield.data.lookup import find_dataset
from afield.data.sources.hub import write_hub_images
from afield.errors import AfieldError, DataError
from tests.data.sources.hub_cache import COMMIT, put
from tests.messages import message_of


def image(shade: int) -> dict:
    content = io.BytesIO()
    Image.new("RGB", (12, 12), (shade, shade, 0)).save(content, "PNG")
    return {"bytes": content.getvalue(), "path": None}


def table(path: Path, **changes) -> bytes:
    frame = pd.DataFrame(
        {
            "image": [image(10 * i) for i in range(8)],
            "domain": ["art"] * 4 + ["photo"] * 4,
            "label": ["cup", "jug"] * 4,
        }
    ).assign(**changes)
    frame.drop(columns=[name for name, value in changes.items() if value is None]).to_parquet(path)
    return path.read_bytes()


def test_a_repository_is_read_and_its_revision_pinned(hub_cache, tmp_path):
    put(hub_cache, "ann/pots", {"data/train-00000-of-00001.parquet": table(tmp_path / "a.parquet")})
    dataset = find_dataset("hf:ann/pots")
    assert dataset.name == "pots"
    assert dataset.spec == f"hf:ann/pots@{COMMIT}"
    assert (dataset.domains, dataset.classes) == (("art", "photo"), ("cup", "jug"))
    assert dataset.load()["art"].x[:, 0, 0, 0].tolist() == [0, 10, 20, 30]
    assert find_dataset(dataset.spec).fingerprint == dataset.fingerprint


def test_files_of_two_splits_are_one_table(hub_cache, tmp_path):
    content = table(tmp_path / "a.parquet")
    names = [f"data/{split}-00000-of-00001.parquet" for split in ("test", "train")]
    put(hub_cache, "ann/pots", dict.fromkeys(names, content))
    domain = find_dataset("hf:ann/pots").load()["art"]
    assert domain.test.tolist() == [True] * 4 + [False] * 4


def test_a_changed_file_is_refused(hub_cache, tmp_path):
    put(hub_cache, "ann/pots", {"data/train.parquet": table(tmp_path / "a.parquet")})
    blob = next((hub_cache / "datasets--ann--pots" / "blobs").iterdir())
    blob.write_bytes(table(tmp_path / "b.parquet", label=["a", "b"] * 4))
    with pytest.raises(DataError, match="checksum is not the one that the hub states"):
        find_dataset("hf:ann/pots")


def test_what_cannot_be_read_is_refused_in_one_line(hub_cache, tmp_path):
    good = table(tmp_path / "a.parquet")
    put(hub_cache, "ann/code", {"pots.py": b"raise SystemExit"})
    put(hub_cache, "ann/two", {"small/a.parquet": good, "large/a.parquet": good})
    put(hub_cache, "ann/bare", {"a.parquet": table(tmp_path / "b.parquet", image=None)})
    for spec, message in {
        "hf:ann/none": "cannot be fetched from the hub",
        "hf:ann": "write hf:owner/name",
        "hf:ann/code": "is not run",
        "hf:ann/two": "several configurations",
        "hf:ann/bare": "no column with samples",
    }.items():
        assert message in message_of(AfieldError, find_dataset, spec)
    assert find_dataset("hf:ann/two/small").domains == ("art", "photo")


def test_a_folder_in_the_layout_of_the_hub_is_a_dataset(tmp_path):
    (tmp_path / "pots" / "data").mkdir(parents=True)
    table(tmp_path / "pots" / "data" / "train-00000-of-00001.parquet")
    dataset = find_dataset(tmp_path / "pots")
    assert dataset.domains == ("art", "photo")
    assert find_dataset(dataset.spec).fingerprint == dataset.fingerprint


def test_data_get_writes_the_images_of_a_hub_home(hub_cache, tmp_path):
    from afield.data.datasets.pacs import CLASSES, SIZES, pacs

    rows = [(domain, name) for domain in SIZES for name in CLASSES]
    frame = pd.DataFrame(rows, columns=["domain", "label"])
    frame["image"] = [image(i) for i in range(len(rows))]
    frame.to_parquet(tmp_path / "pacs.parquet")
    revision = pacs.download.hub.partition("@")[2]
    files = {"data/train-00000-of-00001.parquet": (tmp_path / "pacs.parquet").read_bytes()}
    put(hub_cache, "flwrlabs/pacs", files, commit=revision)
    assert not get_dataset("pacs", tmp_path / "root").missing_files(tmp_path / "root")
    folders = sorted(path.parent for path in (tmp_path / "root" / "PACS").glob("*/*/*.png"))
    assert len(folders) == len(rows)
    first = tmp_path / "root" / "PACS" / rows[0][0] / rows[0][1]
    assert np.asarray(Image.open(next(first.iterdir())))[0, 0].tolist() == [0, 0, 0]


def test_splits_of_a_hub_home_become_lists(hub_cache, tmp_path, monkeypatch):
    # Parts of a table that are read one after the other do not reuse the names of files.
    monkeypatch.setattr("afield.data.frames.ROWS_AT_ONCE", 3)
    splits = ("test", "train")
    names = [f"data/{split}-00000-of-00001.parquet" for split in splits]
    put(hub_cache, "ann/pots", dict.fromkeys(names, table(tmp_path / "a.parquet")))
    write_hub_images("hf:ann/pots", tmp_path / "pots", lists=True)
    domains = find_dataset(tmp_path / "pots").load()
    for domain in ("art", "photo"):
        assert domains[domain].test.tolist().count(True) == 4
        lists = [(tmp_path / "pots" / f"{domain}_{split}.txt").read_text() for split in splits]
        assert [text.count(f"{domain}/cup/") for text in lists] == [2, 2]
    write_hub_images("hf:ann/pots", tmp_path / "plain")
    assert not list((tmp_path / "plain").glob("*.txt"))


def test_the_checksums_of_the_test_cache_are_those_of_the_hub(hub_cache):
    put(hub_cache, "ann/pots", {"a.csv": b"x"})
    blob = next((hub_cache / "datasets--ann--pots" / "blobs").iterdir())
    assert blob.name == hashlib.sha256(b"x").hexdigest()
