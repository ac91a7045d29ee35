"""XGBoost: boosted trees with second derivatives (Chen and Guestrin, 2016), where it is installed.

    score of a class = sum over rounds of the value at the leaf that x reaches

In every round, a tree for each class (one tree if there are two classes) is fitted to the gradient
and the curvature of the cross-entropy, on histograms of the features. Of texts, the trees see the
n-grams with the largest chi² statistic. It needs the package xgboost.

Differs from XGBoost: nothing; the trees are stored as arrays and evaluated by afield.
"""

import json
from collections.abc import Mapping
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
    installed,
    known_start,
)

__all__ = ["XGBoost"]


@dataclass(frozen=True)
class XGBoost(ClassicalMethod):
    """Gradient boosting by XGBoost: `rounds` of trees that are at most `depth` deep."""

    rounds: Annotated[int, LogUniform(30, 300), Field(ge=1, le=10_000)] = 100
    learning_rate: Annotated[float, LogUniform(0.02, 0.5), Field(gt=0)] = 0.3
    depth: Annotated[int, LogUniform(2, 10), Field(ge=1, le=30)] = 6
    l2: Annotated[float, LogUniform(1e-3, 10.0)] = 1.0

    head = BoostedHead
    package = "xgboost"

    def classifier(self, matrix: TrainingMatrix) -> Any:
        """The trees, with the seed of the run; scores start at 0."""
        return installed("xgboost", self.name).XGBClassifier(
            n_estimators=self.rounds,
            learning_rate=self.learning_rate,
            max_depth=self.depth,
            reg_lambda=self.l2,
            base_score=0.5,
            tree_method="hist",
            random_state=matrix.seed % 2**31,
            n_jobs=matrix.threads,
        )

    def arrays(self, matrix: TrainingMatrix) -> Arrays:
        """The trees of every class."""
        matrix = matrix.dense()
        known, y = np.unique(matrix.y, return_inverse=True)
        booster = self.classifier(matrix).fit(matrix.x, y).get_booster()
        model = json.loads(bytes(booster.save_raw("json")))["learner"]["gradient_booster"]["model"]
        of_class = known[1:] if len(known) == 2 else known
        trees = [
            (*_tree(tree), int(of_class[label]))
            for tree, label in zip(model["trees"], model["tree_info"], strict=True)
        ]
        start = known_start(np.zeros(len(known)), known, matrix.classes)
        arrays = boosted_arrays(trees, start, matrix.classes)
        return {**arrays, "columns": np.array(matrix.columns, np.int32)}


def _tree(tree: Mapping[str, Any]) -> tuple[Tree, Any]:
    """A tree of the saved model, and the values of its nodes.

    A value below the condition goes left; here, a value of at most the threshold does.
    """
    left, right = np.array(tree["left_children"]), np.array(tree["right_children"])
    condition = np.array(tree["split_conditions"], np.float32)
    threshold = np.nextafter(condition, np.float32(-np.inf)).astype(np.float64)
    values = np.where(left < 0, condition, 0.0).astype(np.float64)
    return Tree(
        np.array(tree["split_indices"]), threshold, left, right, np.arange(len(left))
    ), values
