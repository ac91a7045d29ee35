"""Folders are listed once in a benchmark, and anew outside of one."""

import os
from collections import Counter

import pytest

import afield
from afield.data import listing
from afield.data.listing import (
    check_dataset_exists,
    current_listing,
    dataset_path,
    join_listing,
    listed_once,
    scan_folder,
)
from afield.data.lookup import find_dataset
from afield.errors import DataError, UnknownNameError
from tests.files import pictures


@pytest.fixture
def scans(monkeypatch):
    """How often each folder was scanned."""
    counts: Counter[str] = Counter()
    scandir = os.scandir

    def counted(path):
        counts[str(path)] += 1
        return scandir(path)

    monkeypatch.setattr(listing.os, "scandir", counted)
    return counts


def test_a_listing_is_sorted_and_distinguishes_files_folders_and_others(tmp_path):
    (tmp_path / "b.txt").touch()
    (tmp_path / "a").mkdir()
    (tmp_path / "c").symlink_to("nowhere")
    os.mkfifo(tmp_path / "d")
    entries = scan_folder(tmp_path)
    assert [entry.path.name for entry in entries] == ["a", "b.txt", "c", "d"]
    assert [entry.is_folder for entry in entries] == [True, False, False, False]
    assert [entry.is_other for entry in entries] == [False, False, True, True]


def test_a_folder_is_listed_once_inside_the_block_and_anew_outside(tmp_path, scans):
    pictures(tmp_path)
    with listed_once():
        first = find_dataset(tmp_path)
        with listed_once():
            assert find_dataset(tmp_path) is first
        folders = {path: n for path, n in scans.items() if path.startswith(f"{tmp_path}/")}
        assert set(folders.values()) == {1}
        assert current_listing()
    assert not current_listing()
    file = next(tmp_path.rglob("*.png"))
    file.write_bytes(file.read_bytes() + b" ")
    assert find_dataset(tmp_path).fingerprint != first.fingerprint


def test_workers_keep_the_listing_of_their_benchmark_and_forget_that_of_another(tmp_path, scans):
    try:
        for name in ("one", "one", "two"):
            join_listing(name)
            scan_folder(tmp_path)
        assert scans[str(tmp_path)] == 2
    finally:
        join_listing("")


def test_a_run_stats_each_file_once(tmp_path, monkeypatch):
    pictures(tmp_path / "own")
    settings = {"steps": 2, "size": 16}
    afield.train(tmp_path / "own", "erm", target="home", store=tmp_path / "runs", settings=settings)
    stats: Counter[str] = Counter()
    status = listing._digestible
    monkeypatch.setattr(
        listing, "_digestible", lambda result: stats.update([str(result.st_ino)]) or status(result)
    )
    afield.train(tmp_path / "own", "erm", target="home", store=tmp_path / "two", settings=settings)
    assert set(stats.values()) == {1}


def test_names_files_and_folders_exist_also_without_suffix(tmp_path):
    (tmp_path / "features.npz").touch()
    assert dataset_path(str(tmp_path / "features")) == tmp_path / "features.npz"
    for spec in ("rotated_digits", str(tmp_path), str(tmp_path / "features")):
        check_dataset_exists(spec)
    (tmp_path / "table.csv").touch()
    check_dataset_exists(f"{tmp_path}/table.csv?label=kind")


def test_a_folder_with_a_similar_name_is_suggested_in_any_case(tmp_path):
    (tmp_path / "PACS").mkdir()
    for name in ("pacs", "PACSS"):
        with pytest.raises(DataError, match=f"did you mean {tmp_path}/PACS\\?"):
            check_dataset_exists(f"{tmp_path}/{name}")
    with pytest.raises(DataError, match="give a folder root/<domain>/<class>/<file>"):
        check_dataset_exists(f"{tmp_path}/quite/different")


def test_a_name_is_compared_with_those_of_datasets():
    with pytest.raises(UnknownNameError, match="did you mean 'spirals'"):
        check_dataset_exists("spirls")
