import pytest

from afield.data.datasets.iwildcam import iwildcam
from afield.errors import DataError
from tests.data.datasets.trees import assert_labels_fit, loaded, needs_wilds, painted


@pytest.fixture
def root(tmp_path, monkeypatch):
    """Three places with four pictures each, and place 1 with a single one of a class of its own."""
    monkeypatch.setenv("AFIELD_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "iwildcam_v2.0"
    lines = ["split,filename,y,location_remapped,sequence_remapped,datetime\n"]
    places = [2, 0, 3] * 4
    for i, place in enumerate([*places, 1]):
        label = i % 4 if place != 1 else 4
        painted(folder / "train" / f"{i}.jpg", label=label, domain=[0, 2, 3, 1].index(place))
        part = "test" if place == 3 else "train"
        lines.append(f"{part},{i}.jpg,{label},{place},{i},2013-05-01 12:03:0{i % 10}.000\n")
    (folder / "metadata.csv").write_text("".join(lines))
    (folder / "RELEASE_v2.0.txt").touch()
    return tmp_path


def test_places_with_one_picture_are_left_out_and_all_classes_are_kept(root):
    dataset = iwildcam(root)
    assert dataset.domains == ("location_0", "location_2", "location_3")
    assert dataset.classes == ("0", "1", "2", "3", "4")


@needs_wilds
def test_places_and_labels_are_those_of_the_metadata(root):
    found = loaded(iwildcam(root), root)
    assert tuple(found) == ("location_0", "location_2", "location_3")
    assert_labels_fit(found)
    assert all(len(domain.y) == 4 for domain in found.values())


def test_a_table_of_another_version_is_reported(root):
    (root / "iwildcam_v2.0" / "metadata.csv").write_text("split,filename\ntrain,a.jpg\n")
    with pytest.raises(DataError, match=r"metadata\.csv: not the table of iWildCam 2\.0"):
        iwildcam(root)


def test_without_files_all_places_are_known(tmp_path):
    assert len(iwildcam(tmp_path).domains) == 323
    assert iwildcam(tmp_path).classes == ()
