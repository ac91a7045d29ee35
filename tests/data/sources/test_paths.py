"""Datasets that do not exist are reported with a guess."""

import pytest

from afield.data.listing import check_dataset_exists, dataset_path
from afield.errors import DataError, UnknownNameError


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
