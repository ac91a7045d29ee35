"""Nearest neighbors: the class that most of the nearest training samples have (Cover, Hart, 1967).

    votes of a class = how many of the `neighbors` nearest samples of the sources have it

Distances are Euclidean, between inputs as a network sees them. Of texts, they are taken in the
n-grams with the largest chi² statistic. A tie goes to the class that comes first.

The model is the training samples: whoever has it has the data.

Differs from scikit-learn's KNeighborsClassifier: nothing but which of several samples at the same
distance counts.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from afield.hyperparameters import LogUniform
from afield.networks.fitted_heads import NeighborsHead
from afield.training.classical_method import Arrays, ClassicalMethod, TrainingMatrix

__all__ = ["Nearest"]


@dataclass(frozen=True)
class Nearest(ClassicalMethod):
    """Votes of the nearest samples; at most as many as the sources have."""

    neighbors: Annotated[int, LogUniform(1, 50), Field(ge=1)] = 5

    head = NeighborsHead

    def classifier(self, matrix: TrainingMatrix) -> Any:
        """The classifier of scikit-learn with the same votes."""
        from sklearn.neighbors import KNeighborsClassifier

        return KNeighborsClassifier(min(self.neighbors, len(matrix.y)))

    def arrays(self, matrix: TrainingMatrix) -> Arrays:
        """The training samples and their classes; there is nothing to fit."""
        matrix = matrix.dense()
        return {
            "points": matrix.x,
            "of_class": matrix.y.astype(np.int32),
            "neighbors": np.array([min(self.neighbors, len(matrix.y))], np.int32),
            "columns": np.array(matrix.columns, np.int32),
        }
