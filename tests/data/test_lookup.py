"""A dataset is found by its name, or by the path of whatever holds a user's own."""

from pathlib import Path

import pytest

from afield.data.domains import DomainSet
from afield.data.lookup import find_dataset
from afield.errors import DataError, UnknownNameError
from tests.files import arrays, common, fonts, forbidden, npz, refusal, tree, words


@pytest.mark.parametrize("name", ["nothing", "nothing.npz", "no/thing"])
def test_a_missing_path_is_named(tmp_path, name):
    assert refusal(tmp_path / name).startswith(
        f"no file or folder {tmp_path / name}; give a folder root/"
    )


def test_a_dataset_is_found_by_name_by_folder_and_by_file(tmp_path, monkeypatch):
    tree(tmp_path / "pictures")
    words(tmp_path / "sounds")
    fonts(tmp_path / "letters")
    npz(tmp_path, **arrays())
    monkeypatch.chdir(tmp_path)
    assert find_dataset("spirals").name == "spirals"
    for spec in ("pictures", "sounds", "letters", "mine.npz"):
        dataset = find_dataset(spec)
        # From elsewhere the same data are found again.
        assert dataset.spec == str(tmp_path / spec)
        assert find_dataset(dataset.spec).fingerprint == dataset.fingerprint
        assert len(dataset.fingerprint) == 16


def test_the_suffix_of_an_archive_may_be_left_out(tmp_path):
    file = npz(tmp_path, **arrays())
    assert find_dataset(tmp_path / "mine").spec == str(file)
    # A folder of that name is meant, if there is one.
    tree(tmp_path / "mine")
    assert find_dataset(tmp_path / "mine").spec == str(tmp_path / "mine")


def test_the_name_of_a_dataset_goes_before_a_folder_of_that_name(tmp_path, monkeypatch):
    tree(tmp_path / "spirals")
    monkeypatch.chdir(tmp_path)
    assert find_dataset("spirals").origin == ""
    assert find_dataset("./spirals").origin == str(tmp_path / "spirals")


def test_the_users_home_is_known(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    tree(tmp_path / "mine")
    assert find_dataset("~/mine").spec == str(tmp_path / "mine")


def test_a_dataset_that_looks_at_its_files_looks_under_the_root(tmp_path):
    assert find_dataset("fonts", tmp_path).missing_files(tmp_path) == [tmp_path / "fonts"]
    fonts(tmp_path / "fonts")
    dataset = find_dataset("fonts", tmp_path)
    assert isinstance(dataset, DomainSet)
    assert (dataset.name, dataset.domains, dataset.origin) == ("fonts", ("ann", "bob"), "")


def test_a_name_that_is_neither_dataset_nor_path_is_answered_with_a_guess():
    with pytest.raises(UnknownNameError, match="'spirls'; did you mean 'spirals'"):
        find_dataset("spirls")


@pytest.mark.parametrize("spec", ["", "a\0b", "x" * 5000, "~nobody-of-this-name/mine"])
def test_what_cannot_be_a_path_is_refused(spec):
    with pytest.raises((DataError, UnknownNameError), match=r"no (dataset, )?file or folder"):
        find_dataset(spec)


def test_a_folder_that_may_not_be_read_is_named():
    with common() as folder, forbidden(path := tree(folder / "mine")):
        assert refusal(path) == f"{path}: cannot be read (Permission denied)"
        message = refusal(path / "photo")
        assert message.startswith("no file or folder")
        assert "Permission denied" in message


def test_a_file_of_another_kind_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("not data")
    assert "notes.txt: not an .npz file of plain arrays" in refusal(tmp_path / "notes.txt")


def test_a_declared_dataset_of_which_nothing_says_the_size_is_known_by_its_files(tmp_path):
    def fingerprint(root: Path) -> str:
        return find_dataset("terra_incognita", root).fingerprint

    for version, content in (("one", b"12"), ("two", b"123")):
        for place in ("location_100", "location_38", "location_43", "location_46"):
            folder = tmp_path / version / "terra_incognita" / place / "bird"
            folder.mkdir(parents=True)
            (folder / "a.jpg").write_bytes(content)
    assert fingerprint(tmp_path / "nothing") == ""
    assert len({"", fingerprint(tmp_path / "one"), fingerprint(tmp_path / "two")}) == 3
