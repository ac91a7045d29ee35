"""Datasets that are folders of pictures, on made-up trees in their layouts."""

from dataclasses import replace

import pytest

from afield import registry
from afield.data.lookup import find_dataset
from afield.data.modalities.image import Image
from afield.data.training_settings import DOMAINBED_DEFAULTS
from afield.errors import DataError
from tests.data.datasets.trees import assert_labels_fit, loaded, painted, tree
from tests.messages import message_of

# Where the domains' folders are, and how many domains and classes there must be.
FOLDERS = {
    "pacs": ("PACS", 4, 7),
    "vlcs": ("VLCS", 4, 5),
    "office_home": ("office_home", 4, 65),
    "terra_incognita": ("terra_incognita", 4, 10),
    "nico_pp": ("nico_pp/public_dg_0416/train", 6, 60),
    "retina_domains": ("retina_domains", 4, 5),
}
COUNTED = ["pacs", "vlcs", "office_home"]
# Those with files and layouts of their own, which have tests of their own.
OTHERS = ["domain_net", "imagenet_r", "fed_isic", "camelyon17", "iwildcam", "fmow"]
ALL = [*FOLDERS, *OTHERS]


pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.mark.parametrize("name", FOLDERS)
def test_domains_classes_and_labels_are_those_of_the_folders(tmp_path, name):
    folder, domains, classes = FOLDERS[name]
    dataset = replace(find_dataset(name, tmp_path), sizes={})
    assert len(set(dataset.domains)) == domains
    assert len(set(dataset.classes)) == classes
    tree(tmp_path / folder, dataset)
    result = loaded(dataset, tmp_path)
    assert tuple(result) == dataset.domains
    for domain in result.values():
        assert domain.y.bincount().tolist() == [2] * classes
    assert_labels_fit(result)


@pytest.mark.parametrize("name", COUNTED)
def test_a_domain_of_the_right_size_is_read_and_another_size_is_reported(tmp_path, name):
    dataset = find_dataset(name, tmp_path)
    assert set(dataset.sizes) == set(dataset.domains)
    tree(tmp_path / FOLDERS[name][0], dataset, classes=1)
    first = dataset.domains[0]
    message = f"domain '{first}' has 2 samples, not {dataset.sizes[first]}"
    with pytest.raises(DataError, match=message):
        loaded(dataset, tmp_path)
    right = replace(dataset, sizes=dict.fromkeys(dataset.domains, 2))
    assert len(loaded(right, tmp_path)) == len(dataset.domains)


@pytest.mark.parametrize("name", FOLDERS)
def test_a_missing_domain_is_reported_with_what_to_do(tmp_path, name):
    folder, *_ = FOLDERS[name]
    dataset = find_dataset(name, tmp_path)
    tree(tmp_path / folder, replace(dataset, domains=dataset.domains[:-1]), classes=1)
    message = message_of(DataError, loaded, dataset, tmp_path)
    assert f"{folder}/{dataset.domains[-1]} is missing" in message
    assert dataset.download.instructions in message


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_that_is_no_class_is_reported(tmp_path, name):
    folder, *_ = FOLDERS[name]
    dataset = replace(find_dataset(name, tmp_path), sizes={})
    root = tree(tmp_path / folder, dataset, classes=1)
    painted(root / dataset.domains[1] / "stranger" / "0.png", label=0, domain=1)
    with pytest.raises(DataError, match="stranger: not a class"):
        loaded(dataset, tmp_path)


@pytest.mark.parametrize("name", ALL)
def test_without_files_the_error_says_what_to_do_in_one_line(tmp_path, name):
    dataset = find_dataset(name, tmp_path)
    assert dataset.domains
    assert dataset.modality == Image()
    assert dataset.download.license
    fetch = f"`afield data get {name}` downloads it, or " if dataset.download.hub else ""
    assert message_of(DataError, loaded, dataset, tmp_path) == (
        f"{name}: {tmp_path / dataset.needs[0]} is missing; {fetch}{dataset.download.instructions} "
        f"(the data root is {tmp_path}; set AFIELD_DATA for another)"
    )
    assert len(dataset.download.instructions) > 40


@pytest.mark.parametrize("name", [*COUNTED, "domain_net", "fed_isic", "camelyon17"])
def test_sizes_add_up_to_the_number_in_the_first_line(tmp_path, name):
    sizes = find_dataset(name, tmp_path).sizes
    assert f" {sum(sizes.values()):,} " in registry.summary("datasets", name)


@pytest.mark.parametrize("name", [name for name in ALL if name != "camelyon17"])
def test_the_network_and_its_training_are_those_of_the_field(tmp_path, name):
    training = find_dataset(name, tmp_path).training
    assert (training.backbone, training.lr) == (DOMAINBED_DEFAULTS.backbone, DOMAINBED_DEFAULTS.lr)
    assert training.size is None
