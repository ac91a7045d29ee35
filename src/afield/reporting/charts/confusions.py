"""Which classes the best method confuses on unseen domains, over all trials."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from afield.reporting.results import Results

__all__ = ["ClassErrors", "WorstClass", "class_errors"]

# With more classes, the matrix is too small to read; the worst classes are still listed.
MAX_MATRIX = 20
MAX_LISTED = 5


@dataclass(frozen=True)
class WorstClass:
    """A class, its accuracy, its samples, and the class that it is most often taken for."""

    name: str
    accuracy: float
    samples: int
    taken_for: str = ""
    share: float = 0.0


@dataclass(frozen=True)
class ClassErrors:
    """The worst classes of a method, and the shares of its confusion matrix (empty: too large)."""

    method: str
    worst: Sequence[WorstClass]
    names: Sequence[str]
    shares: Sequence[Sequence[float]] = ()


def class_errors(results: Results, rule: str, method: str) -> ClassErrors | None:
    """The confusions of a method's picked checkpoints; None if the records have none."""
    picks = [
        pick
        for by_domain in results.picks(rule).get(method, {}).values()
        for pick in by_domain.values()
        if pick is not None and pick.score is not None and pick.score.confusion is not None
    ]
    # Folds that drop different classes have other numbers for them.
    if not picks or len({pick.run.classes for pick in picks}) > 1:
        return None
    scores = [pick.score for pick in picks if pick.score is not None]
    matrices = [score.confusion.matrix for score in scores if score.confusion is not None]
    total = sum((matrix for matrix in matrices if matrix is not None), np.zeros(1))
    if total.ndim != 2 or any(matrix is None for matrix in matrices):
        return None
    names = _class_names(results, method, picks[0].run.classes, len(total))
    samples = total.sum(axis=1, keepdims=True)
    shares = total / np.maximum(samples, 1)
    shown = shares.tolist() if len(total) <= MAX_MATRIX else []
    return ClassErrors(method, _worst(shares, samples[:, 0], names), names, shown)


def _class_names(
    results: Results, method: str, classes: Sequence[str], count: int
) -> Sequence[str]:
    known = classes or results.methods[method][0].class_names
    return known if len(known) == count else [f"class {number}" for number in range(count)]


def _worst(
    shares: NDArray[np.float64], samples: NDArray[np.float64], names: Sequence[str]
) -> list[WorstClass]:
    accuracies = np.where(samples > 0, np.diag(shares), np.inf)
    worst = []
    for index in np.argsort(accuracies, kind="stable")[:MAX_LISTED]:
        if samples[index] > 0 and accuracies[index] < 1:
            others = shares[index].copy()
            others[index] = -1
            other = int(others.argmax())
            worst.append(
                WorstClass(
                    names[index],
                    float(accuracies[index]),
                    int(samples[index]),
                    names[other] if others[other] > 0 else "",
                    float(others[other]),
                )
            )
    return worst
