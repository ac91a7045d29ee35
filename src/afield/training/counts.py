"""Counts of hits by class and by group, in a form that takes little space in a record."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "MAX_CONFUSION_CLASSES",
    "ClassCounts",
    "Confusion",
    "class_metrics",
    "group_metrics",
    "roc_auc",
]

# With more classes, a split keeps counts per class instead of the whole matrix.
MAX_CONFUSION_CLASSES = 100


@dataclass(frozen=True)
class Confusion:
    """How often samples of one class were taken for another, in one split.

    Up to 100 classes, `cells` are the nonzero cells of the matrix, each as class × `classes` +
    predicted class, and `counts` their counts. With more classes, both are None, and `samples`,
    `predictions` and `hits` are the counts of each class.
    """

    classes: int
    cells: tuple[int, ...] | None = None
    counts: tuple[int, ...] | None = None
    samples: tuple[int, ...] | None = None
    predictions: tuple[int, ...] | None = None
    hits: tuple[int, ...] | None = None

    @property
    def matrix(self) -> NDArray[np.int64] | None:
        """One row per class, one column per predicted class; None above 100 classes.

        >>> Confusion(2, cells=(0, 3), counts=(5, 4)).matrix.tolist()
        [[5, 0], [0, 4]]
        """
        if self.cells is None or self.counts is None:
            return None
        flat = np.zeros(self.classes**2, dtype=np.int64)
        flat[list(self.cells)] = self.counts
        return flat.reshape(self.classes, self.classes)

    @property
    def per_class(self) -> NDArray[np.int64]:
        """Samples, predictions and hits (rows) of every class (columns)."""
        matrix = self.matrix
        if matrix is None:
            return np.array([self.samples, self.predictions, self.hits])
        return np.stack([matrix.sum(axis=1), matrix.sum(axis=0), matrix.diagonal()])


@dataclass(frozen=True)
class ClassCounts:
    """The counts of several splits at once.

    `split_index` (the split), `labels` and `predicted` (classes) have one entry per sample.
    """

    splits: int
    classes: int
    split_index: NDArray[Any]
    labels: NDArray[Any]
    predicted: NDArray[Any]

    @cached_property
    def matrices(self) -> NDArray[np.int64]:
        """Splits × classes × predicted classes."""
        cell = (self.split_index * self.classes + self.labels) * self.classes + self.predicted
        shape = (self.splits, self.classes, self.classes)
        return np.bincount(cell, minlength=int(np.prod(shape))).reshape(shape)

    @cached_property
    def per_class(self) -> NDArray[np.int64]:
        """Samples, predictions and hits (first axis) by split and class."""
        if self.classes <= MAX_CONFUSION_CLASSES:
            matrices = self.matrices
            hits = matrices.diagonal(axis1=1, axis2=2)
            return np.stack([matrices.sum(axis=2), matrices.sum(axis=1), hits])
        right = self.labels == self.predicted
        counted = [(self.labels, ...), (self.predicted, ...), (self.labels, right)]
        return np.stack([self._count(classes, chosen) for classes, chosen in counted])

    def _count(self, classes: NDArray[Any], chosen: Any) -> NDArray[np.int64]:
        cell = (self.split_index * self.classes + classes)[chosen]
        counts = np.bincount(cell, minlength=self.splits * self.classes)
        return counts.reshape(self.splits, self.classes)

    def confusion(self, split: int) -> Confusion:
        """The counts of one split, as a record keeps them."""
        if self.classes > MAX_CONFUSION_CLASSES:
            samples, predictions, hits = (tuple(row.tolist()) for row in self.per_class[:, split])
            return Confusion(self.classes, samples=samples, predictions=predictions, hits=hits)
        flat = self.matrices[split].ravel()
        cells = np.flatnonzero(flat)
        return Confusion(self.classes, tuple(cells.tolist()), tuple(flat[cells].tolist()))


def class_metrics(per_class: NDArray[Any]) -> dict[str, NDArray[np.float64]]:
    """Balanced accuracy, macro F1 and worst class from counts as in `ClassCounts.per_class`."""
    samples, predictions, hits = per_class
    present = samples > 0
    recall = _shares(hits, samples, present)
    f1 = _shares(2 * hits, samples + predictions, present)
    return {
        "balanced_accuracy": np.nanmean(recall, axis=-1),
        "macro_f1": np.nanmean(f1, axis=-1),
        "worst_class": np.nanmin(recall, axis=-1),
    }


def _shares(
    numerator: NDArray[Any], denominator: NDArray[Any], present: NDArray[Any]
) -> NDArray[np.float64]:
    out = np.full(present.shape, np.nan)
    return np.divide(numerator, denominator, out=out, where=present)


def group_metrics(groups: Sequence[tuple[int, int]]) -> dict[str, float]:
    """Worst group, 10th percentile and mean from the hits and samples of every group.

    >>> group_metrics([(1, 2), (3, 3)])
    {'worst_group': 0.5, 'p10_group': 0.55, 'mean_group': 0.75}
    """
    accuracies = np.array([hits / samples for hits, samples in groups])
    return {
        "worst_group": float(accuracies.min()),
        "p10_group": float(np.percentile(accuracies, 10)),
        "mean_group": float(accuracies.mean()),
    }


def roc_auc(scores: NDArray[Any], positive: NDArray[Any]) -> float | None:
    """Area under the ROC curve; None without samples of both classes, or with a NaN.

    It is the share of pairs of a positive and a negative sample whose scores are in this order;
    a tie counts half.
    """
    count = int(positive.sum())
    pairs = count * (len(positive) - count)
    if not pairs or np.isnan(scores).any():
        return None
    # The mean rank of equal scores, as scipy.stats computes it, whose import takes a while.
    _, place, equal = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (equal.cumsum() - (equal - 1) / 2)[place]
    return float((ranks[positive].sum() - count * (count + 1) / 2) / pairs)
