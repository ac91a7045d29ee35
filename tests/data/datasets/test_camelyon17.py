from dataclasses import replace

import pytest

from afield.data.datasets.camelyon17 import SIZES, camelyon17
from afield.errors import DataError
from tests.data.datasets.trees import assert_labels_fit, camelyon17_files, loaded, needs_wilds

pytestmark = needs_wilds

MADE_UP = replace(camelyon17, sizes=dict.fromkeys(SIZES, 4))


@pytest.fixture
def root(tmp_path, own_cache):
    """Two patches of each class and hospital, the hospitals mixed."""
    return camelyon17_files(tmp_path, [(i // 5 % 2, i % 5, i % 5, 0) for i in range(20)])


def test_hospitals_and_labels_are_those_of_the_metadata(root):
    domains = loaded(MADE_UP, root)
    assert tuple(domains) == tuple(SIZES)
    assert_labels_fit(domains)
    assert all(domain.y.bincount().tolist() == [2, 2] for domain in domains.values())
    assert all(domain.test is None for domain in domains.values())


def test_a_wrong_count_is_reported(root):
    with pytest.raises(DataError, match="'hospital_0' has 4 samples, not 59436"):
        loaded(camelyon17, root)


def remove_a_patch(folder):
    next((folder / "patches").glob("*/*_x_7_y_7.png")).unlink()


def remove_a_hospital(folder):
    lines = (folder / "metadata.csv").read_text().splitlines()
    others = [line for line in lines if not line.endswith(",4,0")]
    (folder / "metadata.csv").write_text("\n".join(others))


def replace_the_table(folder):
    (folder / "metadata.csv").write_text("<html>\n")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (remove_a_patch, r"_x_7_y_7\.png: listed in the metadata, but missing"),
        (remove_a_hospital, "hospital 'hospital_4' is not in the metadata"),
        (replace_the_table, "cannot read it"),
    ],
)
def test_files_that_are_not_complete_are_reported_in_one_line(root, change, message):
    change(root / "camelyon17_v1.0")
    with pytest.raises(DataError, match=message) as caught:
        loaded(MADE_UP, root)
    assert "\n" not in str(caught.value)
