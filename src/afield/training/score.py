"""Scores of splits, computed from the outputs of a model."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from afield.data.groups import GROUP_SEPARATOR
from afield.training.calibration import calibration_errors, selective_accuracies
from afield.training.checkpoint import Score
from afield.training.counts import ClassCounts, class_metrics, group_metrics, roc_auc

__all__ = ["Groups", "Outputs", "compute_scores"]

# Names of the groups of a split, and the group of every sample as an index of the names.
Groups = tuple[NDArray[Any], NDArray[np.intp]]


@dataclass(frozen=True)
class Outputs:
    """What a model made of the samples of several splits, one entry per sample.

    `splits` is the index of the split, and `classes` the number of classes. A label below 0 means
    that the model has no output for the class. `confidence` is None if
    the calibration is not needed. `margins` are differences of the two logits, for two classes.
    """

    splits: NDArray[Any]
    labels: NDArray[Any]
    predicted: NDArray[Any]
    classes: int
    losses: NDArray[Any]
    confidence: NDArray[Any] | None = None
    margins: NDArray[Any] | None = None

    @property
    def hits(self) -> NDArray[np.bool_]:
        """Whether the prediction is right."""
        return self.labels == self.predicted

    def restricted(self, kept: NDArray[np.bool_]) -> "Outputs":
        """The same for some of the samples."""
        return replace(
            self,
            splits=self.splits[kept],
            labels=self.labels[kept],
            predicted=self.predicted[kept],
            losses=self.losses[kept],
            confidence=None if self.confidence is None else self.confidence[kept],
            margins=None if self.margins is None else self.margins[kept],
        )


def compute_scores(
    outputs: Outputs, groups: Sequence[Groups | None], *, plain: Sequence[bool]
) -> list[Score]:
    """One score per split, computed for all splits at once; a `plain` one has no details.

    Every split needs samples of a class that the model has an output for.
    """
    known = outputs.labels >= 0
    if known.all():
        return _known_scores(outputs, groups, plain)
    of_known = [
        None if of_split is None else _restricted(of_split, known[outputs.splits == i])
        for i, of_split in enumerate(groups)
    ]
    scores = _known_scores(outputs.restricted(known), of_known, plain)
    unknown = outputs.restricted(~known)
    return [_with_unseen(score, unknown, i) for i, score in enumerate(scores)]


def _with_unseen(score: Score, unknown: Outputs, split: int) -> Score:
    """The score with the samples whose class the model has no output for."""
    inside = unknown.splits == split
    if not inside.any():
        return score
    confidence = None if unknown.confidence is None else float(unknown.confidence[inside].mean())
    return replace(score, unseen_classes=int(inside.sum()), unseen_confidence=confidence)


def _restricted(groups: Groups, kept: NDArray[np.bool_]) -> Groups:
    names, index = groups
    used, inverse = np.unique(index[kept], return_inverse=True)
    return names[used], inverse


def _known_scores(
    outputs: Outputs, groups: Sequence[Groups | None], plain: Sequence[bool]
) -> list[Score]:
    splits, hits, sizes = outputs.splits, outputs.hits, np.bincount(outputs.splits)
    counts = ClassCounts(len(sizes), outputs.classes, splits, outputs.labels, outputs.predicted)
    by_class = class_metrics(counts.per_class)
    columns = [
        np.bincount(splits, hits) / sizes,
        by_class.pop("balanced_accuracy"),
        np.bincount(splits, outputs.losses) / sizes,
        sizes,
    ]
    if outputs.confidence is not None:
        columns.append(calibration_errors(outputs.confidence, hits, splits))
        columns.append(selective_accuracies(outputs.confidence, hits, splits))
    scores = [Score(*row) for row in zip(*(c.tolist() for c in columns), strict=True)]
    for i in np.flatnonzero(~np.asarray(plain)).tolist():
        metrics = {name: float(values[i]) for name, values in by_class.items()}
        metrics |= _roc_auc(outputs, i)
        scores[i] = replace(scores[i], metrics=metrics, confusion=counts.confusion(i))
        if (of_split := groups[i]) is not None:
            scores[i] = _with_groups(scores[i], of_split, hits[splits == i])
    return scores


def _roc_auc(outputs: Outputs, split: int) -> dict[str, float]:
    """The AUROC of a split that has samples of both of two classes; otherwise empty."""
    if outputs.margins is None:
        return {}
    inside = outputs.splits == split
    value = roc_auc(outputs.margins[inside], outputs.labels[inside] == 1)
    return {} if value is None else {"auroc": value}


def _with_groups(score: Score, groups: Groups, hits: NDArray[np.bool_]) -> Score:
    names, index = groups
    by_group: dict[str, tuple[int, int]] = {}
    for name, right, size in zip(names, np.bincount(index, hits), np.bincount(index), strict=True):
        # Samples without a group count in no group, those with several in each of them.
        for group in filter(None, str(name).split(GROUP_SEPARATOR)):
            before = by_group.get(group, (0, 0))
            by_group[group] = before[0] + int(right), before[1] + int(size)
    if not by_group:
        return score
    metrics = {**(score.metrics or {}), **group_metrics(list(by_group.values()))}
    return replace(score, metrics=metrics, groups=by_group)
