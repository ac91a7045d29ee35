import pytest

from afield.data.datasets.iwildcam import iwildcam
from afield.errors import DataError
from tests.data.datasets.trees import assert_labels_fit, iwildcam_files, loaded, needs_wilds


@pytest.fixture
def root(tmp_path, own_cache):
    """Three places with four pictures each, and place 1 with a single one of a class of its own."""
    images = [
        ("test" if place == 3 else "train", i % 4, place, [0, 2, 3].index(place))
        for i, place in enumerate([2, 0, 3] * 4)
    ]
    return iwildcam_files(tmp_path, [*images, ("train", 4, 1, 3)])


def test_places_with_one_picture_are_left_out_and_all_classes_are_kept(root):
    dataset = iwildcam(root)
    assert dataset.domains == ("location_0", "location_2", "location_3")
    assert dataset.classes == ("0", "1", "2", "3", "4")


@needs_wilds
def test_places_and_labels_are_those_of_the_metadata(root):
    domains = loaded(iwildcam(root), root)
    assert tuple(domains) == ("location_0", "location_2", "location_3")
    assert_labels_fit(domains)
    assert all(len(domain.y) == 4 for domain in domains.values())


def test_a_table_of_another_version_is_reported(root):
    (root / "iwildcam_v2.0" / "metadata.csv").write_text("split,filename\ntrain,a.jpg\n")
    with pytest.raises(DataError, match=r"metadata\.csv: not the table of iWildCam 2\.0"):
        iwildcam(root)


def test_without_files_all_places_are_known(tmp_path):
    assert len(iwildcam(tmp_path).domains) == 323
    assert iwildcam(tmp_path).classes == ()
