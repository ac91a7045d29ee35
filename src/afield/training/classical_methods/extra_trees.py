"""Extremely randomized trees: the mean of trees with random thresholds (Geurts et al., 2006).

    share(x) = mean over trees of the share of each class at the leaf that x reaches

Every tree sees all samples. At each node it draws some of the features, and a random threshold for
each; the best of these splits is taken. Of texts, the trees see the n-grams with the largest chi²
statistic.

Differs from scikit-learn: nothing but 300 trees instead of 100, except on texts.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from afield.hyperparameters import LogUniform, Uniform
from afield.networks.fitted_heads import ForestHead
from afield.training.classical_method import (
    Arrays,
    ClassicalMethod,
    TrainingMatrix,
    Tree,
    all_classes,
    tree_arrays,
)

__all__ = ["ExtraTrees"]

# The default number of trees by the kind of samples; that of others is 300.
USUAL_TREES = {"texts": 100}


@dataclass(frozen=True)
class ExtraTrees(ClassicalMethod):
    """A forest of extremely randomized trees; None is 300 of them, or 100 on texts.

    `features` is the share of the features that a node draws, by default the square root of their
    number. A leaf has at least `leaf` samples.
    """

    trees: Annotated[int | None, LogUniform(100, 500), Field(ge=1, le=10_000)] = None
    features: Annotated[float | None, Uniform(0.02, 0.5), Field(gt=0, le=1)] = None
    leaf: Annotated[int, LogUniform(1, 10), Field(ge=1)] = 1

    head = ForestHead

    def classifier(self, matrix: TrainingMatrix) -> Any:
        """The forest, with the seed of the run."""
        from sklearn.ensemble import ExtraTreesClassifier

        return ExtraTreesClassifier(
            self.trees or USUAL_TREES.get(matrix.kind, 300),
            max_features=self.features or "sqrt",
            min_samples_leaf=self.leaf,
            n_jobs=matrix.threads,
            random_state=matrix.seed % 2**32,
        )

    def arrays(self, matrix: TrainingMatrix) -> Arrays:
        """The trees, and the shares at their leaves."""
        matrix = matrix.dense()
        fitted = self.classifier(matrix).fit(matrix.x, matrix.y)
        arrays = forest_arrays(fitted, matrix.classes)
        return {**arrays, "columns": np.array(matrix.columns, np.int32)}


def forest_arrays(fitted: Any, classes: int) -> Arrays:
    """The arrays of a forest of scikit-learn.

    Most leaves have samples of one class, so the table begins with a row for each class, and only
    other leaves have a row of their own.
    """
    rows, trees, mixed = classes, [], []
    for estimator in fitted.estimators_:
        tree = estimator.tree_
        shares = all_classes(tree.value[:, 0], fitted.classes_, classes)
        own = np.flatnonzero((tree.children_left < 0) & (shares.max(axis=1) < 1))
        row = shares.argmax(axis=1)
        row[own] = rows + np.arange(len(own))
        mixed.append(shares[own])
        rows += len(own)
        left, right = tree.children_left, tree.children_right
        trees.append(Tree(tree.feature, tree.threshold, left, right, row))
    table = np.concatenate([np.eye(classes), *mixed]).astype(np.float32)
    return {**tree_arrays(trees), "table": table}
