"""Camelyon17's official splits, as the package wilds has them."""

from dataclasses import replace

import pytest

from afield.data.datasets.camelyon17 import WILDS
from afield.data.datasets.camelyon17_wilds import SIZES, camelyon17_wilds
from afield.data.groups import group_labels
from afield.studies.benchmark import make_benchmark
from tests.data.datasets.trees import camelyon17_files, loaded, needs_wilds

pytestmark = needs_wilds

MADE_UP = replace(camelyon17_wilds, sizes={})


@pytest.fixture
def root(tmp_path, own_cache):
    """Eight patches of each hospital on two slides; every fourth is of the split id_val."""
    patches = [(i // 5 % 2, i % 5, 10 * (i % 5) + i // 20, int(i // 5 % 4 == 3)) for i in range(40)]
    return camelyon17_files(tmp_path, patches)


def test_domains_are_training_hospitals_and_the_splits_val_and_test(root):
    domains = loaded(MADE_UP, root)
    assert tuple(domains) == ("hospital_0", "hospital_3", "hospital_4", "val", "test")
    for name in ("hospital_0", "hospital_3", "hospital_4"):
        assert domains[name].test.tolist().count(True) == 2
    for name, hospital in (("val", 1), ("test", 2)):
        assert domains[name].test is None
        # The blue of an image is its hospital.
        assert set(domains[name].x[:, 2, 0, 0].tolist()) == {hospital}
    assert SIZES["hospital_0"] + SIZES["hospital_3"] + SIZES["hospital_4"] == 302_436 + 33_560


def test_splits_are_those_of_the_package(root):
    result, official = loaded(MADE_UP, root), WILDS._open(root)
    paths = [str(path) for path in official._input_array]
    for split in ("val", "test"):
        chosen = official.split_array == official.split_dict[split]
        assert set(result[split].names) == {
            p for p, inside in zip(paths, chosen, strict=True) if inside
        }
    id_val = official.split_array == official.split_dict["id_val"]
    expected = {p for p, inside in zip(paths, id_val, strict=True) if inside}
    marked = {
        name
        for domain in result.values()
        if domain.test is not None
        for name, test in zip(domain.names, domain.test, strict=True)
        if test
    }
    assert marked == expected


def test_slides_group_the_patches(root):
    groups = group_labels("slide", loaded(MADE_UP, root), "camelyon17_wilds")
    assert set(groups["test"]) == {"20", "21"}
    assert groups["test"].count("20") == 4


def test_a_bench_is_the_task_of_wilds_unless_it_names_domains(root, monkeypatch):
    monkeypatch.setenv("AFIELD_DATA", str(root))
    monkeypatch.setattr("afield.data.datasets.camelyon17_wilds.camelyon17_wilds", MADE_UP)
    small = {"backbone": "small:cnn", "steps": 2, "size": 16}
    (run,) = make_benchmark("camelyon17_wilds", "erm", trials=1, **small).runs()
    assert run.sources == ("hospital_0", "hospital_3", "hospital_4")
    assert (run.tested, run.rules) == (("test",), ("validation",))
    assert (run.report, run.group) == ("whole", "slide")
    (other,) = make_benchmark("camelyon17_wilds", "erm", trials=1, targets="val", **small).runs()
    assert other.sources == ("hospital_0", "hospital_3", "hospital_4", "test")
    assert other.report == ""
