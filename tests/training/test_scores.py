"""Counts by class: the same numbers from a matrix and from counts per class."""

import numpy as np
import pytest

from afield.training import scores as counts
from afield.training.scores import ClassCounts, class_metrics, roc_auc

SPLIT, LABELS = np.array([0, 0, 0, 1, 1]), np.array([0, 1, 2, 1, 1])
PREDICTED = np.array([0, 1, 1, 0, 1])


def test_counts_per_class_equal_the_sums_of_the_matrix(monkeypatch):
    whole = ClassCounts(2, 4, SPLIT, LABELS, PREDICTED)
    per_class = whole.per_class
    matrix = whole.confusion(0)
    monkeypatch.setattr(counts, "MAX_CONFUSION_CLASSES", 3)
    per_class_only = ClassCounts(2, 4, SPLIT, LABELS, PREDICTED)
    assert np.array_equal(per_class_only.per_class, per_class)
    small = per_class_only.confusion(0)
    assert small.matrix is None
    assert np.array_equal(small.per_class, matrix.per_class)
    assert matrix.per_class.tolist() == [[1, 1, 1, 0], [1, 2, 0, 0], [1, 1, 0, 0]]


def test_metrics_by_class_are_those_computed_by_hand():
    result = class_metrics(ClassCounts(2, 4, SPLIT, LABELS, PREDICTED).per_class)
    # First split: recalls 1, 1, 0; F1 1, 2/3, 0. Second: only class 1, with recall 1/2, F1 2/3.
    assert result["balanced_accuracy"] == pytest.approx([2 / 3, 1 / 2])
    assert result["macro_f1"] == pytest.approx([5 / 9, 2 / 3])
    assert result["worst_class"] == pytest.approx([0, 1 / 2])


def test_auroc_is_the_share_of_ordered_pairs():
    positive = np.array([True, False, True, False])
    # Pairs: 3 > 1, 3 > 2, 2 > 1, 2 = 2.
    assert roc_auc(np.array([3.0, 1.0, 2.0, 2.0]), positive) == pytest.approx(3.5 / 4)
    assert roc_auc(np.array([3.0, np.nan, 2.0, 2.0]), positive) is None
    assert roc_auc(np.array([3.0, 1.0]), np.array([True, True])) is None


def test_the_area_under_the_curve_is_that_of_scipys_ranks():
    from scipy.stats import rankdata

    random = np.random.default_rng(0)
    for scores in (random.normal(size=400), random.integers(0, 9, size=400).astype(float)):
        positive = random.random(400) < 0.3
        count = int(positive.sum())
        ranks = rankdata(scores)[positive].sum()
        expected = float((ranks - count * (count + 1) / 2) / (count * (400 - count)))
        assert roc_auc(scores, positive) == expected
