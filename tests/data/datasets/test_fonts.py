"""A folder of fonts under the data root is a dataset with a name."""

import pytest

from afield.data.datasets.fonts import fonts
from afield.data.domains import ReadOptions, data_root
from afield.data.lookup import find_dataset
from afield.data.sources.fonts import CHARACTERS, font_dataset
from afield.errors import DataError
from tests import files
from tests.messages import message_of


def test_the_fonts_of_the_folder_are_the_domains(tmp_path):
    files.fonts(tmp_path / "fonts")
    dataset = fonts(tmp_path)
    assert (dataset.name, dataset.domains) == ("fonts", ("ann", "bob"))
    assert dataset.classes == CHARACTERS
    domains = dataset.load(ReadOptions(tmp_path))
    assert tuple(domains) == ("ann", "bob")
    assert all(domain.x.shape[1:] == (1, 32, 32) for domain in domains.values())


def test_it_is_known_by_its_name_and_by_what_is_in_the_folder(tmp_path):
    folder = files.fonts(tmp_path / "fonts")
    before, own = fonts(tmp_path), font_dataset(folder)
    assert (before.spec, before.origin) == ("fonts", "")
    assert before.fingerprint == own.fingerprint != ""
    assert before.training == own.training
    files.font(folder / "cid.ttf")
    after = find_dataset("fonts", tmp_path)
    assert after.domains == ("ann", "bob", "cid")
    assert after.fingerprint != before.fingerprint


def test_without_the_folder_it_is_declared_and_says_what_to_do(tmp_path):
    dataset = fonts(tmp_path)
    assert dataset.missing_files(tmp_path) == [tmp_path / "fonts"]
    assert dataset.classes == CHARACTERS
    message = message_of(DataError, dataset.load, ReadOptions(tmp_path))
    assert "fonts is missing; create the folder fonts in the data root" in message
    assert "https://fonts.google.com/" in message


def test_a_folder_that_appears_later_needs_a_fresh_start(tmp_path):
    dataset = fonts(tmp_path)
    files.fonts(tmp_path / "fonts")
    with pytest.raises(DataError, match="start again"):
        dataset.load(ReadOptions(tmp_path))


@pytest.mark.data
def test_the_real_fonts_are_domains():
    if not (data_root() / "fonts").is_dir():
        pytest.skip(f"no {data_root() / 'fonts'}; AFIELD_DATA names the folder with fonts")
    dataset = fonts(data_root())
    assert len(dataset.domains) == 122
    assert {"caveat", "pacifico"} <= set(dataset.domains)
