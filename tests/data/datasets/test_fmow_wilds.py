"""FMoW's official splits by year, and the worst region as the package computes it."""

import numpy as np
import pytest
import torch

from afield.data.datasets.fmow import REGIONS, WILDS
from afield.data.datasets.fmow_wilds import fmow_wilds
from afield.training.evaluation import Outputs, compute_scores
from tests.data.datasets.trees import COUNTRIES, fmow_files, loaded, needs_wilds

pytestmark = needs_wilds


@pytest.fixture
def root(tmp_path, own_cache):
    """Of every country: two images before 2013 of train and val each, two later of val and test."""
    kinds = [("train", 2008), ("val", 2009), ("val", 2014), ("test", 2016), ("test", 2010)] * 2
    images = [(country, *kind) for country in (*COUNTRIES, "XXX") for kind in kinds]
    return fmow_files(tmp_path, [(i % 62, *image) for i, image in enumerate(images)])


def test_regions_train_before_2013_and_later_years_validate_and_test(root):
    domains = loaded(fmow_wilds, root)
    assert tuple(domains) == (*REGIONS, "val", "test")
    for name in REGIONS:
        assert sorted(domains[name].test.tolist()) == [False, False, True, True]
    assert [len(domains[name].y) for name in ("val", "test")] == [12, 12]
    # Images from 2010 of the split test are of the split id_test, which is left out.
    assert sum(len(domain.y) for domain in domains.values()) == 48
    assert set(domains["test"].columns["region"]) == {*REGIONS[:-1], ""}


def test_the_worst_region_is_computed_without_other_as_in_the_package(root):
    test = loaded(fmow_wilds, root)["test"]
    official = WILDS._open(root)
    assert torch.equal(
        test.y, official.y_array[official.split_array == official.split_dict["test"]]
    )
    y, regions = test.y.numpy(), np.array(test.columns["region"])
    predicted = y.copy()
    # One of two images of Asia is wrong, and both of Other.
    predicted[np.flatnonzero(regions == "Asia")[:1]] = 61
    predicted[regions == ""] = 61
    outputs = Outputs(np.zeros(12, dtype=int), y, predicted, 62, np.zeros(12))
    (score,) = compute_scores(outputs, [np.unique(regions, return_inverse=True)], plain=[False])
    assert score.accuracy == pytest.approx(9 / 12)
    assert score.groups["Asia"] == (1, 2)
    assert set(score.groups) == set(REGIONS) - {"Other"}
    assert score.metrics["worst_group"] == 0.5
