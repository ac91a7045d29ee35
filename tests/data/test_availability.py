"""Datasets of another package, whose archives a server of our own has."""

import hashlib
import re
from pathlib import Path

import numpy as np
import pytest

from afield import registry
from afield.data.domains import DomainSet, ReadOptions
from afield.data.inspection import get_dataset, list_availability
from afield.errors import DataError, UnknownNameError
from tests.data.downloadable import NAME, archive_of, served
from tests.messages import message_of


def test_a_dataset_is_fetched_unpacked_and_can_be_read(tmp_path, declare):
    first = archive_of(tmp_path / "www" / "here.tar.gz", ["here"])
    second = archive_of(tmp_path / "www" / "there.tgz", ["there"])
    (tmp_path / "www" / "notes.txt").write_text("as it is")
    third = f"md5:{hashlib.md5(b'as it is', usedforsecurity=False).hexdigest()}"
    root = tmp_path / "data" / "root"
    with served(tmp_path / "www") as address:
        declare(
            (f"{address}/here.tar.gz", first, "theirs"),
            (f"{address}/there.tgz", second, "theirs"),
            (f"{address}/notes.txt", third, "theirs/more"),
        )
        found = get_dataset(NAME, root)
    assert found.name == NAME
    domains = found.load(ReadOptions(root, side=8))
    assert [len(domain.y) for domain in domains.values()] == [4, 4]
    assert domains["there"].x.flatten(1)[:, 0].tolist() == [60, 70, 60, 70]
    assert (root / "theirs" / "more" / "notes.txt").read_text() == "as it is"
    assert not list(root.rglob("*.part"))
    # The server is gone; nothing is asked of it.
    assert get_dataset(NAME, root).missing_files(root) == []


def test_what_is_here_is_not_fetched_again_and_takes_its_room_once(tmp_path, declare):
    checksum = archive_of(tmp_path / "www" / "all.tar.gz", ["here", "there"])
    root = tmp_path / "root"
    with served(tmp_path / "www") as address:
        declare((f"{address}/all.tar.gz", checksum, "theirs"))
        get_dataset(NAME, root)
    # The server is gone: a second request would fail.
    assert get_dataset(NAME, root).missing_files(root) == []
    assert not list((root / "downloads").glob("all.tar.gz"))


def test_a_wrong_checksum_is_reported_and_nothing_is_unpacked(tmp_path, declare):
    archive_of(tmp_path / "www" / "all.tar.gz", ["here", "there"])
    root, wrong = tmp_path / "root", "sha256:" + 64 * "0"
    with served(tmp_path / "www") as address:
        declare((f"{address}/all.tar.gz", wrong, "theirs"))
        message = message_of(DataError, get_dataset, NAME, root)
    assert re.search(rf"all\.tar\.gz: .*instead of {wrong}", message)
    assert not (root / "theirs").exists()
    assert not list((root / "downloads").glob("all.tar.gz*"))


def test_a_file_that_the_server_does_not_have_is_reported(tmp_path, declare):
    (tmp_path / "www").mkdir()
    with served(tmp_path / "www") as address:
        declare((f"{address}/all.tar.gz", "md5:" + 32 * "0", "theirs"))
        message = message_of(DataError, get_dataset, NAME, tmp_path / "root")
    assert re.search(r"all\.tar\.gz: .*404", message)


def test_an_archive_without_what_is_needed_is_reported(tmp_path, declare):
    checksum = archive_of(tmp_path / "www" / "half.tar.gz", ["here"])
    with served(tmp_path / "www") as address:
        declare((f"{address}/half.tar.gz", checksum, "theirs"))
        message = message_of(DataError, get_dataset, NAME, tmp_path / "root")
    assert re.search(r"downloaded and unpacked, but .*theirs/set/there is missing", message)


def test_what_only_a_person_can_get_is_reported_with_the_data_root(tmp_path, declare):
    declare()
    root = tmp_path / "my data"
    advice = "afield cannot download it; write to [them] and unpack their disk in theirs"
    message = message_of(DataError, get_dataset, NAME, root)
    assert message == f"{NAME}: {advice} (data root: {root})"
    assert not root.exists()
    for domain in ("here", "there"):
        (root / "theirs" / "set" / domain).mkdir(parents=True)
    assert get_dataset(NAME, root).name == NAME


def test_what_comes_with_afield_is_there_and_makes_no_folder(tmp_path):
    assert get_dataset("spirals", tmp_path / "root").domains[0] == "turn0"
    assert not (tmp_path / "root").exists()


def test_there_is_nothing_to_get_of_ones_own_data(tmp_path):
    np.savez(tmp_path / "own.npz", X=np.eye(4), y=[0, 1, 0, 1], domain=[0, 0, 1, 1])
    with pytest.raises(DataError, match="these are your own data; there is nothing to download"):
        get_dataset(str(tmp_path / "own.npz"), tmp_path)


def test_an_unknown_name_has_a_guess(tmp_path):
    with pytest.raises(UnknownNameError, match="did you mean 'pacs'"):
        get_dataset("pacss", tmp_path)


def test_all_datasets_are_in_stock_and_none_is_here_that_needs_files(tmp_path):
    found = list_availability(tmp_path)
    assert [each.name for each in found] == registry.names("datasets")
    here = {each.name for each in found if each.available}
    assert {"spirals", "rotated_digits"} <= here
    assert "pacs" not in here
    for each in found:
        assert each.how_to_get
        assert "\n" not in each.how_to_get
        declared = registry.find("datasets", each.name)
        dataset = declared if isinstance(declared, DomainSet) else declared(tmp_path)
        assert each.available == (not dataset.needs), each.name
        fetched = each.how_to_get == f"afield data get {each.name}"
        assert fetched == bool(dataset.download.archives or dataset.download.hub), each.name


def test_datasets_are_here_when_their_files_are(tmp_path):
    sets = {name: registry.find("datasets", name) for name in registry.names("datasets")}
    sets = {name: found for name, found in sets.items() if isinstance(found, DomainSet)}
    for found in sets.values():
        for path in found.needs:
            (tmp_path / path).mkdir(parents=True, exist_ok=True)
    assert {each.name for each in list_availability(tmp_path) if each.available} >= set(sets)
    # One path of several is not enough.
    Path(tmp_path / sets["pacs"].needs[-1]).rmdir()
    (pacs,) = (each for each in list_availability(tmp_path) if each.name == "pacs")
    assert not pacs.available


@pytest.mark.parametrize(
    "source",
    [
        "import no_such_module_anywhere\n",
        "other = 1\n",
        "from afield.errors import DataError\n"
        "def theirs(root):\n    raise DataError('set: cannot be read')\n",
    ],
    ids=["import fails", "name is missing", "files cannot be read"],
)
def test_a_dataset_that_cannot_be_looked_at_does_not_hide_the_others(tmp_path, declare, source):
    declare(source=source)
    found = {each.name: each for each in list_availability(tmp_path)}
    assert list(found) == registry.names("datasets")
    assert not found[NAME].available
    assert any(
        word in found[NAME].how_to_get for word in ("no_such_module", "theirs", "cannot be read")
    )
