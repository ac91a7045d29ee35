"""The commands on the cache as a user types them."""

import os
import time

import numpy as np
import pytest
from PIL import Image

from afield.data.cache import cache_root
from afield.data.cache_entries import cache_entries, choose_entries, remove_entries
from afield.data.lookup import find_dataset
from afield.files import acquire_lock
from afield.studies.features import use_features
from tests.files import pictures

DAY = 86400


def age(entry, *, days):
    lock = entry.path.with_name(f"{entry.path.name}.lock")
    for path in (entry.path, *entry.path.rglob("*"), lock):
        if path.exists():
            os.utime(path, (time.time() - days * DAY,) * 2)


@pytest.mark.slow
def test_features_of_an_earlier_version_are_listed_and_go_first(afield, hospitals):
    for version in range(2):
        Image.new("RGB", (20, 20)).save(hospitals / "St. Marien" / "Erguss" / f"new{version}.png")
        use_features(find_dataset(hospitals), {})
    (cache_root() / "mine.txt").write_text("not of the cache")
    for entry in cache_entries():
        age(entry, days=3 if entry.outdated else 0)
    code, out, _ = afield("cache", "list")
    assert code == 0
    assert out.count("features of timm:test_resnet at") == 2
    assert "earlier version" in out
    total = next(line for line in out.splitlines() if str(cache_root()) in line)
    assert afield("cache", "size")[1].strip() == total
    (outdated,) = [entry for entry in cache_entries() if entry.outdated]
    assert choose_entries(cache_entries(), older_than=2) == [outdated]
    size = sum(entry.size for entry in cache_entries())
    assert choose_entries(cache_entries(), keep=size - 1) == [outdated]
    code, out, _ = afield("cache", "clear", "--keep", f"{size - 1}B", "--dry-run")
    assert (code, outdated.path.exists()) == (0, True)
    assert "would remove" in out
    assert afield("cache", "clear", "--old")[0] == 0
    assert not outdated.path.exists()
    assert [entry for entry in cache_entries() if "features" in entry.content]
    afield("cache", "clear")
    assert cache_entries() == []
    assert (cache_root() / "mine.txt").exists()


@pytest.fixture
def filled(tmp_path, afield, monkeypatch):
    """A cache with the decoded files of two folders."""
    monkeypatch.setenv("AFIELD_CACHE", str(tmp_path / "cache"))
    for name in ("photos", "other"):
        afield("data", "check", str(pictures(tmp_path / name)))


def test_entries_are_chosen_by_dataset_and_age(filled):
    entries = cache_entries()
    assert {entry.dataset for entry in choose_entries(entries, dataset="other")} == {"other"}
    for entry in choose_entries(entries, dataset="other"):
        age(entry, days=3)
    assert choose_entries(cache_entries(), older_than=2) == choose_entries(
        cache_entries(), dataset="other"
    )
    assert choose_entries(cache_entries(), older_than=4) == []


def test_an_entry_that_is_in_use_stays(filled):
    decoded = next(entry for entry in cache_entries() if entry.content == "decoded files")
    lock = acquire_lock(decoded.path.with_name(f"{decoded.path.name}.lock"))
    try:
        assert remove_entries([decoded]) == [decoded]
        assert decoded.path.is_dir()
    finally:
        lock.release()
    assert remove_entries([decoded]) == []


def test_features_that_are_being_computed_stay(tmp_path, monkeypatch):
    monkeypatch.setenv("AFIELD_CACHE", str(tmp_path))
    folder = tmp_path / f"embedding-{16 * 'a'}"
    folder.mkdir()
    np.save(folder / "00000000.npy", np.zeros(3))
    (entry,) = cache_entries()
    assert remove_entries([entry]) == [entry]
    age(entry, days=1)
    assert remove_entries(cache_entries()) == []
    assert not folder.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [(("nothing",), "the cache has nothing of 'nothing'"), (("--keep", "much"), "a size such as")],
)
def test_mistakes_are_one_line(refusal, monkeypatch, tmp_path, words, message):
    monkeypatch.setenv("AFIELD_CACHE", str(tmp_path / "none"))
    assert message in refusal("cache", "clear", *words)
