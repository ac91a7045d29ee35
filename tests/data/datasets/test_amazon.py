"""Amazon: reviewers as domains, official splits, and the 10th percentile over reviewers."""

import csv

import numpy as np
import pandas as pd
import pytest

from afield.data.datasets.amazon import amazon
from afield.data.domains import ReadOptions
from afield.data.lookup import find_dataset
from afield.training.evaluation import Outputs, compute_scores
from tests.data.datasets.trees import needs_wilds

pytestmark = needs_wilds
# Reviewers and the splits of their reviews; -1 is in no split.
REVIEWERS = {
    "ann": [0, 0, 2, 2],
    "bob": [0, 0, 2, 2, -1],
    "cem": [0, 0, 4, 4],
    "dov": [1, 1, 1, 1],
    "eve": [3] * 6,
    "fay": [3] * 6,
}


@pytest.fixture
def root(tmp_path, own_cache):
    rows = [(name, split) for name, splits in REVIEWERS.items() for split in splits]
    frame = pd.DataFrame(
        {
            "reviewerID": [name for name, _ in rows],
            "asin": "product",
            "overall": [1.0 + number % 5 for number in range(len(rows))],
            "reviewTime": "today",
            "unixReviewTime": 1,
            "reviewText": [f"review {number}" for number in range(len(rows))],
            "summary": "",
            "verified": True,
            "category": "Books",
            "reviewYear": 2018,
        }
    )
    folder = tmp_path / "amazon_v2.1"
    (folder / "splits").mkdir(parents=True)
    frame.to_csv(folder / "reviews.csv", index=False, quoting=csv.QUOTE_NONNUMERIC)
    splits = pd.DataFrame({"split": [split for _, split in rows]})
    splits.to_csv(folder / "splits" / "user.csv", index=False)
    (folder / "RELEASE_v2.1.txt").touch()
    return tmp_path


def test_reviewers_with_both_lists_are_domains_and_the_official_splits_too(root):
    dataset = amazon(root)
    assert dataset.domains == ("ann", "bob", "others", "val", "test")
    domains = dataset.load(ReadOptions(root, tokens=16))
    assert domains["ann"].test.tolist() == [False, False, True, True]
    assert domains["others"].test is None
    assert [len(domains[name].y) for name in ("others", "val", "test")] == [2, 4, 12]
    assert domains["test"].columns["user"] == ["eve"] * 6 + ["fay"] * 6
    texts = [bytes(row[row >= 0].tolist()).decode() for row in domains["val"].x]
    assert texts == ["review 13", "review 14", "review 15", "review 16"]
    # The first review has one star, the fourteenth four.
    assert domains["val"].y.tolist() == [3, 4, 0, 1]


def test_the_metric_is_the_tenth_percentile_over_the_reviewers(root):
    test = amazon(root).load(ReadOptions(root, tokens=16))["test"]
    predicted = test.y.clone()
    predicted[[0, 1, 2, 7]] = (predicted[[0, 1, 2, 7]] + 1) % 5
    outputs = Outputs(np.zeros(12, int), test.y.numpy(), predicted.numpy(), 5, np.zeros(12))
    groups = np.unique(test.columns["user"], return_inverse=True)
    (score,) = compute_scores(outputs, [groups], plain=[False])
    # As the package computes it: np.percentile(accuracies, 10).
    assert score.metrics["p10_group"] == pytest.approx(np.percentile([3 / 6, 5 / 6], 10))


def test_without_its_files_the_dataset_says_how_to_get_them(tmp_path):
    dataset = find_dataset("amazon", tmp_path)
    assert dataset.domains == ("others", "val", "test")
    assert "get_dataset('amazon'" in dataset.download.instructions
