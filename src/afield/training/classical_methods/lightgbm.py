"""LightGBM: boosted trees that grow leaf by leaf (Ke et al., 2017), where the package is installed.

    score of a class = sum over rounds of the value at the leaf that x reaches

In every round, a tree for each class (one tree if there are two classes) is fitted to the gradient
of the cross-entropy, on histograms of the features. Of texts, the trees see the n-grams with the
largest chi² statistic. It needs the package lightgbm.

Differs from LightGBM: nothing; the trees are stored as arrays and evaluated by afield.
"""

from collections.abc import Iterator
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

__all__ = ["LightGBM"]


@dataclass(frozen=True)
class LightGBM(ClassicalMethod):
    """Gradient boosting by LightGBM: `rounds` of trees with at most `leaves` leaves each."""

    rounds: Annotated[int, LogUniform(30, 300), Field(ge=1, le=10_000)] = 100
    learning_rate: Annotated[float, LogUniform(0.02, 0.3), Field(gt=0)] = 0.1
    leaves: Annotated[int, LogUniform(4, 63), Field(ge=2)] = 31
    l2: Annotated[float, LogUniform(1e-3, 10.0)] = 0.0

    head = BoostedHead
    package = "lightgbm"

    def classifier(self, matrix: TrainingMatrix) -> Any:
        """The trees, with the seed of the run and sums in a fixed order."""
        return installed("lightgbm", self.name).LGBMClassifier(
            n_estimators=self.rounds,
            learning_rate=self.learning_rate,
            num_leaves=self.leaves,
            reg_lambda=self.l2,
            random_state=matrix.seed % 2**31,
            n_jobs=matrix.threads,
            deterministic=True,
            force_row_wise=True,
            verbosity=-1,
        )

    def arrays(self, matrix: TrainingMatrix) -> Arrays:
        """The trees of every class."""
        matrix = matrix.dense()
        fitted = self.classifier(matrix).fit(matrix.x, matrix.y)
        known = fitted.classes_
        of_class = known[1:] if len(known) == 2 else known
        model = fitted.booster_.dump_model()
        trees = [
            (*_tree(info["tree_structure"]), int(of_class[number % len(of_class)]))
            for number, info in enumerate(model["tree_info"])
        ]
        start = known_start(np.zeros(len(known)), known, matrix.classes)
        arrays = boosted_arrays(trees, start, matrix.classes)
        return {**arrays, "columns": np.array(matrix.columns, np.int32)}


def _tree(root: dict[str, Any]) -> tuple[Tree, Any]:
    """A tree of the dumped model, and the values of its nodes."""
    nodes = list(_in_order(root))
    place = {id(node): number for number, node in enumerate(nodes)}
    leaf = np.array(["split_feature" not in node for node in nodes])

    def column(name: str, kind: Any) -> Any:
        return np.array([node.get(name, 0) for node in nodes], kind)

    left, right = (
        np.array([place[id(node[side])] if side in node else -1 for node in nodes])
        for side in ("left_child", "right_child")
    )
    features, thresholds = column("split_feature", np.int64), column("threshold", np.float64)
    values = np.where(leaf, column("leaf_value", np.float64), 0.0)
    return Tree(features, thresholds, left, right, np.arange(len(nodes))), values


def _in_order(root: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All nodes, every one before its children."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += [node[side] for side in ("right_child", "left_child") if side in node]
