"""Boosted trees: each tree corrects the sum of the trees before it (Friedman, 2001).

    score of a class = start + sum over rounds of learning_rate · value at the leaf that x reaches

In every round, a tree for each class (one tree if there are two classes) is fitted to the gradient
of the cross-entropy, on histograms of 255 bins for each feature. Of texts, the trees see the
n-grams with the largest chi² statistic.

Differs from scikit-learn's HistGradientBoostingClassifier: it never stops early, so that all
training samples are used whatever their number.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from afield.hyperparameters import LogUniform
from afield.networks.fitted_heads import BoostedHead
from afield.training.classical_method import (
    Arrays,
    ClassicalMethod,
    TrainingMatrix,
    Tree,
    boosted_arrays,
    known_start,
)

__all__ = ["BoostedTrees"]


@dataclass(frozen=True)
class BoostedTrees(ClassicalMethod):
    """Gradient boosting on histograms: `rounds` of trees with at most `leaves` leaves each."""

    rounds: Annotated[int, LogUniform(30, 300), Field(ge=1, le=10_000)] = 100
    learning_rate: Annotated[float, LogUniform(0.02, 0.3), Field(gt=0)] = 0.1
    leaves: Annotated[int, LogUniform(4, 63), Field(ge=2)] = 31
    l2: Annotated[float, LogUniform(1e-3, 10.0)] = 0.0

    head = BoostedHead

    def classifier(self, matrix: TrainingMatrix) -> Any:
        """The trees, with the seed of the run."""
        from sklearn.ensemble import HistGradientBoostingClassifier

        return HistGradientBoostingClassifier(
            learning_rate=self.learning_rate,
            max_iter=self.rounds,
            max_leaf_nodes=self.leaves,
            l2_regularization=self.l2,
            early_stopping=False,
            random_state=matrix.seed % 2**32,
        )

    def arrays(self, matrix: TrainingMatrix) -> Arrays:
        """The trees of every class."""
        matrix = matrix.dense()
        fitted = self.classifier(matrix).fit(matrix.x, matrix.y)
        known, start = fitted.classes_, np.ravel(fitted._baseline_prediction)
        if len(known) == 2:
            known, start = known[1:], start[:1]
        trees = [
            _tree(predictor.nodes, int(known[number]))
            for predictors in fitted._predictors
            for number, predictor in enumerate(predictors)
        ]
        if len(fitted.classes_) == 2:
            start = np.array([0.0, start[0]])
        whole = known_start(start, fitted.classes_, matrix.classes)
        arrays = boosted_arrays(trees, whole, matrix.classes)
        return {**arrays, "columns": np.array(matrix.columns, np.int32)}


def _tree(nodes: Any, label: int) -> tuple[Tree, Any, int]:
    """A tree of scikit-learn's histogram boosting, with its values and its class."""
    leaf = nodes["is_leaf"].astype(bool)
    left, right = (np.where(leaf, -1, nodes[side].astype(np.int64)) for side in ("left", "right"))
    features, threshold = nodes["feature_idx"], nodes["num_threshold"]
    return Tree(features, threshold, left, right, np.arange(len(nodes))), nodes["value"], label
