"""Groups of samples: from a column or from a file, complete or refused in one line."""

import re

import numpy as np
import pytest
import torch

from afield.data.domains import Domain
from afield.data.groups import canonical_group, describe_group, group_labels
from afield.data.lookup import find_dataset
from afield.errors import DataError, UnknownNameError


def domain(names=(), **columns) -> Domain:
    return Domain(torch.zeros(2, 1), torch.tensor([0, 1]), names=names, columns=columns)


DOMAINS = {"east": domain(["east/a/1.png", "east/b/2.png"]), "west": domain(["west/a/1.png"] * 2)}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "slides.csv"
    path.write_text("path,group,ward\neast/a/1.png,s1,x\neast/b/2.png,s2,x\n./west/a/1.png,s3,y\n")
    return path


def test_a_column_of_the_data_groups_the_samples():
    labels = group_labels("slide", {"east": domain(slide=["s1", 2])}, "patches")
    assert labels == {"east": ["s1", "2"]}


def test_a_file_groups_the_samples_by_their_paths(file):
    expected = {"east": ["s1", "s2"], "west": ["s3", "s3"]}
    assert group_labels(canonical_group(str(file)), DOMAINS, "photos") == expected
    wards = canonical_group(f"{file}:ward")
    assert group_labels(wards, DOMAINS, "photos") == {"east": ["x", "x"], "west": ["y", "y"]}
    assert describe_group(wards) == "slides.csv:ward"


def test_the_array_group_of_an_npz_file_is_a_column(tmp_path):
    path = tmp_path / "own.npz"
    arrays = {"X": np.eye(4), "y": [0, 1, 0, 1], "domain": ["a", "a", "b", "b"]}
    np.savez(path, **arrays, group=["g1", "g2", "g1", "g3"])
    domains = find_dataset(path).load()
    assert group_labels("group", domains, "own") == {"a": ["g1", "g2"], "b": ["g1", "g3"]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("path,group\neast/a/1.png,s1\n", "no row for east/b/2.png and 2 more samples of photos"),
        ("path,slide\neast/a/1.png,s1\n", "no column 'group'; it has path, slide"),
        ("path,slide\neast/a/1.png,s1,s2\n", "no column 'group'; it has path, slide"),
        ("path,group\n", "no column 'path'; it has no rows"),
        ("path,group\neast/a/1.png,\n", "no group for east/a/1.png"),
    ],
)
def test_an_incomplete_file_is_refused_in_one_line(content, message, tmp_path):
    path = tmp_path / "slides.csv"
    path.write_text(content)
    with pytest.raises(DataError, match=re.escape(f"{path}: {message}")):
        group_labels(canonical_group(str(path)), DOMAINS, "photos")


def test_a_file_that_changed_or_does_not_exist_is_refused(file):
    group = canonical_group(str(file))
    file.write_text(file.read_text().replace("s1", "s9"))
    with pytest.raises(DataError, match="changed after the run was planned"):
        group_labels(group, DOMAINS, "photos")
    with pytest.raises(DataError, match="no such file; --group takes a column"):
        canonical_group("nowhere.csv")


def test_an_unknown_column_and_samples_without_names_are_refused(file):
    with pytest.raises(UnknownNameError, match="no column 'slde'; did you mean 'slide'"):
        group_labels("slde", {"east": domain(slide=["s1", "s2"])}, "patches")
    with pytest.raises(UnknownNameError, match="no column 'slide'; give a CSV file"):
        group_labels("slide", {"east": domain()}, "spirals")
    with pytest.raises(DataError, match="have no file names"):
        group_labels(canonical_group(str(file)), {"east": domain()}, "spirals")
