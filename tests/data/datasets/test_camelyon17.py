from dataclasses import replace

import pytest

from afield.data.datasets.camelyon17 import SIZES, camelyon17
from afield.errors import DataError
from tests.data.datasets.trees import assert_labels_fit, loaded, needs_wilds, painted

pytestmark = needs_wilds

MADE_UP = replace(camelyon17, sizes=dict.fromkeys(SIZES, 4))


@pytest.fixture
def root(tmp_path, monkeypatch):
    """Two patches of each class and hospital, the hospitals mixed."""
    monkeypatch.setenv("AFIELD_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "camelyon17_v1.0"
    lines = [",patient,node,x_coord,y_coord,tumor,slide,center,split\n"]
    for i in range(20):
        tumor, centre = i // 5 % 2, i % 5
        name = f"patient_00{centre}_node_1"
        file = folder / "patches" / name / f"patch_{name}_x_{i}_y_7.png"
        painted(file, label=tumor, domain=centre)
        lines.append(f"{i},00{centre},1,{i},7,{tumor},{centre},{centre},0\n")
    (folder / "metadata.csv").write_text("".join(lines))
    (folder / "RELEASE_v1.0.txt").touch()
    return tmp_path


def test_hospitals_and_labels_are_those_of_the_metadata(root):
    found = loaded(MADE_UP, root)
    assert tuple(found) == tuple(SIZES)
    assert_labels_fit(found)
    assert all(domain.y.bincount().tolist() == [2, 2] for domain in found.values())
    assert all(domain.test is None for domain in found.values())


def test_a_wrong_count_is_reported(root):
    with pytest.raises(DataError, match="'hospital_0' has 4 samples, not 59436"):
        loaded(camelyon17, root)


def test_a_patch_that_is_not_there_is_named(root):
    next((root / "camelyon17_v1.0" / "patches").glob("*/*_x_7_y_7.png")).unlink()
    with pytest.raises(DataError, match=r"_x_7_y_7\.png: listed in the metadata, but missing"):
        loaded(MADE_UP, root)


def test_metadata_without_a_hospital_are_reported(root):
    table = root / "camelyon17_v1.0" / "metadata.csv"
    lines = table.read_text().splitlines()
    table.write_text("\n".join(line for line in lines if not line.endswith(",4,0")))
    with pytest.raises(DataError, match="hospital 'hospital_4' is not in the metadata"):
        loaded(MADE_UP, root)


def test_a_table_that_the_package_cannot_read_is_reported_in_one_line(root):
    (root / "camelyon17_v1.0" / "metadata.csv").write_text("<html>\n")
    with pytest.raises(DataError, match="cannot read it") as caught:
        loaded(MADE_UP, root)
    assert "\n" not in str(caught.value)
