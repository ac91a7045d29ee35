from dataclasses import replace

import pytest

from afield.data.datasets.imagenet_r import CLASSES, STYLES, imagenet_r
from afield.errors import DataError
from tests.data.datasets.trees import assert_labels_fit, loaded, painted

NAMES = [f"n{number:08}" for number in range(CLASSES)]


@pytest.fixture
def root(tmp_path, own_cache):
    """Two pictures of each class, of two styles: no style has all classes."""
    for label, name in enumerate(NAMES):
        for i in range(2):
            number = (label + i) % len(STYLES)
            file = tmp_path / "imagenet-r" / name / f"{STYLES[number]}_{label + i}.jpg"
            painted(file, label=label, domain=number)
    (tmp_path / "imagenet-r" / "README.txt").write_text("n00000000 goldfish\n")
    (tmp_path / "imagenet-r" / NAMES[0] / ".DS_Store").write_bytes(b"clutter")
    return tmp_path


def test_styles_are_domains_and_folders_are_classes(root):
    dataset = imagenet_r(root)
    assert len(STYLES) == 15
    assert list(dataset.classes) == NAMES
    domains = loaded(dataset, root)
    assert tuple(domains) == STYLES
    assert sum(len(domain.y) for domain in domains.values()) == 2 * CLASSES
    assert_labels_fit(domains)


@pytest.mark.parametrize("name", ["watercolour_0.jpg", "art.jpg", "art_deco_0.jpg"])
def test_a_file_without_a_known_style_is_reported(root, name):
    painted(root / "imagenet-r" / NAMES[3] / name, label=3, domain=0)
    with pytest.raises(DataError, match=f"{name}: not named <style>_<number>"):
        loaded(imagenet_r(root), root)


def test_a_folder_that_is_no_class_is_reported(root):
    (root / "imagenet-r" / "stranger").mkdir()
    with pytest.raises(DataError, match="201 class folders, not 200"):
        loaded(imagenet_r(root), root)


def test_a_wrong_count_is_reported(root):
    with pytest.raises(DataError, match="'art' has 27 samples, not 30"):
        loaded(replace(imagenet_r(root), sizes={"art": 30}), root)


def test_without_files_the_styles_are_known_and_the_classes_not_yet(tmp_path):
    assert imagenet_r(tmp_path).domains == STYLES
    assert imagenet_r(tmp_path).classes == ()
