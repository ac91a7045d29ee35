"""iWildCam's official splits: training locations, and the splits val and test as domains."""

import numpy as np
import pytest
import torch

from afield.data.datasets.iwildcam import WILDS
from afield.data.datasets.iwildcam_wilds import iwildcam_wilds
from afield.training.scores import ClassCounts, class_metrics
from tests.data.datasets.trees import iwildcam_files, loaded, needs_wilds

pytestmark = needs_wilds
# Location: splits of its images.
SPLITS = {
    0: ["train", "train", "id_val", "id_test"],
    1: ["train", "train"],
    2: ["train", "id_val", "id_val"],
    3: ["val"] * 3,
    4: ["test"] * 3,
    5: ["test"] * 2,
    6: ["id_val", "id_val"],
}


@pytest.fixture
def root(tmp_path, own_cache):
    splits = [(split, place) for place, splits in SPLITS.items() for split in splits]
    images = [(split, i % 3, place, place) for i, (split, place) in enumerate(splits)]
    return iwildcam_files(tmp_path, images)


def test_locations_with_both_lists_are_domains_and_the_others_are_joined(root):
    dataset = iwildcam_wilds(root)
    assert dataset.domains == ("location_0", "location_2", "others", "val", "test")
    domains = loaded(dataset, root)
    assert domains["location_0"].test.tolist() == [False, False, True]
    assert domains["others"].test.tolist() == [False, False, True, True]
    assert [len(domains[name].y) for name in ("val", "test")] == [3, 5]
    assert domains["test"].columns["location"] == ["4", "4", "4", "5", "5"]


def test_macro_f1_is_that_of_the_package(root):
    official = WILDS._open(root)
    generator = np.random.default_rng(0)
    y, predicted = generator.integers(0, 2, 40), generator.integers(0, 3, 40)
    metadata = official.metadata_array[np.zeros(40, dtype=int)]
    results, _ = official.eval(torch.from_numpy(predicted), torch.from_numpy(y), metadata)
    counts = ClassCounts(1, 3, np.zeros(40, dtype=int), y, predicted)
    ours = class_metrics(counts.per_class)["macro_f1"]
    assert ours[0] == pytest.approx(results["F1-macro_all"])
