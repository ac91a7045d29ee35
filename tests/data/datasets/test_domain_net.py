import shutil
from dataclasses import replace

import pytest

from afield.data.datasets.domain_net import CLASSES, SIZES, domain_net
from afield.errors import DataError
from tests.data.datasets.trees import assert_labels_fit, loaded, painted, tree

# The tower is first here, and last in the numbers of the lists, which ignore capitals.
NAMES = sorted(["The_Eiffel_Tower", *(f"a{number:03}" for number in range(CLASSES - 1))])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The first picture of each class in the training list, the second in the test list."""
    root = tmp_path_factory.mktemp("data")
    folder = tree(root / "domain_net", replace(domain_net(root), classes=tuple(NAMES)))
    numbers = {name: i for i, name in enumerate(sorted(NAMES, key=str.lower))}
    for domain in SIZES:
        for i, part in enumerate(("train", "test")):
            lines = [f"{domain}/{name}/{i}.png {numbers[name]}\n" for name in NAMES]
            (folder / f"{domain}_{part}.txt").write_text("".join(lines))
        painted(folder / domain / NAMES[0] / "on_no_list.png", label=0, domain=99)
    return root


@pytest.fixture(autouse=True)
def cache(whole, monkeypatch):
    monkeypatch.setenv("AFIELD_CACHE", str(whole / "cache"))


@pytest.mark.slow
def test_classes_are_folder_names_in_order_and_lists_say_what_is_tested(whole):
    dataset = domain_net(whole)
    assert list(dataset.classes) == NAMES
    domains = loaded(replace(dataset, sizes=dict.fromkeys(SIZES, 2 * CLASSES)), whole)
    assert tuple(domains) == tuple(SIZES)
    assert_labels_fit(domains)
    for domain in domains.values():
        assert [name.endswith("1.png") for name in domain.names] == domain.test.tolist()
        assert domain.test.sum() == CLASSES


def test_validation_lists_change_the_fingerprint_and_so_the_keys(tmp_path, whole):
    folder = tmp_path / "domain_net"
    folder.mkdir()
    for path in (whole / "domain_net").glob("*.txt"):
        shutil.copy(path, folder)
    assert domain_net(tmp_path).fingerprint == domain_net(whole).fingerprint == ""
    for domain in SIZES:
        (folder / f"{domain}_val.txt").write_text(f"{domain}/a000/0.png 1\n")
    first = domain_net(tmp_path).fingerprint
    (folder / "real_val.txt").write_text("real/a001/0.png 1\n")
    assert "" != first != domain_net(tmp_path).fingerprint


def test_another_number_of_listed_files_is_reported(whole):
    with pytest.raises(DataError, match="'clipart' has 690 samples, not 48129"):
        loaded(domain_net(whole), whole)


def test_without_a_list_the_error_says_where_it_comes_from(tmp_path, whole):
    for needed in domain_net(tmp_path).needs:
        (tmp_path / needed).mkdir(parents=True)
    (tmp_path / "domain_net" / "real_test.txt").rmdir()
    with pytest.raises(DataError, match=r"real_test\.txt is missing; .*domainnet/txt/"):
        loaded(domain_net(tmp_path), tmp_path)


def test_a_folder_that_is_no_class_is_reported(tmp_path, whole):
    for needed in domain_net(tmp_path).needs:
        (tmp_path / needed).mkdir(parents=True)
    for name in (*NAMES, "stranger"):
        (tmp_path / "domain_net" / "clipart" / name).mkdir()
    with pytest.raises(DataError, match="346 different names, not 345"):
        loaded(domain_net(tmp_path), tmp_path)
    shutil.rmtree(tmp_path / "domain_net" / "clipart" / "stranger")
    assert len(domain_net(tmp_path).classes) == CLASSES
