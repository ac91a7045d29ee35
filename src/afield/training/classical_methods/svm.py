"""Support vector machine with a radial kernel (Cortes and Vapnik, 1995).

    decision of two classes = b + sum over support vectors v of weight · exp(-γ · |x - v|²)
    γ = gamma / (columns · variance of all numbers)

Every two classes have a decision, and the class with most votes wins; the margins of its decisions
make a score of the votes. Of texts, it sees the n-grams with the largest chi² statistic.

Support vectors are training samples: a stored model contains some of the data. Training takes a
time that grows with the square of the number of samples.

Differs from scikit-learn's SVC: nothing but the order of samples whose votes and margins are equal.
"""

from dataclasses import dataclass
from itertools import combinations
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from afield.hyperparameters import LogUniform
from afield.networks.fitted_heads import KernelHead
from afield.training.classical_method import Arrays, ClassicalMethod, TrainingMatrix

__all__ = ["SVM"]


@dataclass(frozen=True)
class SVM(ClassicalMethod):
    """A support vector machine; a smaller `c` allows more samples within the margin."""

    c: Annotated[float, LogUniform(0.1, 100.0), Field(gt=0)] = 1.0
    gamma: Annotated[float, LogUniform(0.05, 5.0), Field(gt=0)] = 1.0

    head = KernelHead

    def classifier(self, matrix: TrainingMatrix) -> Any:
        """The machine, with the gamma of scikit-learn's ``scale`` times `gamma`."""
        from sklearn.svm import SVC

        values = matrix.dense().x
        return SVC(C=self.c, gamma=self.gamma / (values.shape[1] * max(float(values.var()), 1e-12)))

    def arrays(self, matrix: TrainingMatrix) -> Arrays:
        """Support vectors, their weights in every pair of classes, and the intercepts."""
        matrix = matrix.dense()
        fitted = self.classifier(matrix).fit(matrix.x.astype(np.float64), matrix.y)
        sign = -1.0 if len(fitted.classes_) == 2 else 1.0
        return {
            "vectors": fitted.support_vectors_.astype(np.float32),
            "weights": (sign * _pair_weights(fitted)).astype(np.float32),
            "intercepts": (sign * fitted.intercept_).astype(np.float32),
            "gamma": np.array([fitted.gamma], np.float32),
            "known": fitted.classes_.astype(np.int32),
            "columns": np.array(matrix.columns, np.int32),
        }


def _pair_weights(fitted: Any) -> Any:
    """The weight of each support vector in each pair of classes; 0 if its class is another."""
    ends = np.concatenate([[0], np.cumsum(fitted.n_support_)])
    pairs = list(combinations(range(len(fitted.n_support_)), 2))
    weights = np.zeros((len(pairs), ends[-1]))
    for row, (first, second) in zip(weights, pairs, strict=True):
        for label, other in ((first, second - 1), (second, first)):
            own = slice(ends[label], ends[label + 1])
            row[own] = fitted.dual_coef_[other, own]
    return weights
