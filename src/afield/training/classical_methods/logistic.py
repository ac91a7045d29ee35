"""Logistic regression: the linear model that fits the sources best, with a penalty on its weights.

    W, b = argmin of ½ · |W|² + c · sum of cross-entropy over all samples of the sources

The inputs are standardized, but for the n-grams of texts. So are the indicators and categories of
tables: what is rare in the sources may be frequent in the target. The biases are not penalized.
L-BFGS of scikit-learn finds the optimum, which is unique.

Differs from scikit-learn: nothing; only the default of c depends on the samples.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from afield.errors import SpecError
from afield.hyperparameters import LogUniform
from afield.training.classical_method import (
    ABSENT_CLASS_MARGIN,
    Arrays,
    ClassicalMethod,
    TrainingMatrix,
)

__all__ = ["Logistic"]

# The default of c by the kind of samples.
USUAL_C = {"table": 0.1, "texts": 3.0, "numbers": 0.01}
MAX_ITERATIONS = 1000


@dataclass(frozen=True)
class Logistic(ClassicalMethod):
    """Logistic regression; a smaller `c` penalizes the weights more, None suits the samples."""

    c: Annotated[float | None, LogUniform(1e-3, 10.0)] = None

    def __post_init__(self) -> None:
        if self.c is not None and self.c <= 0:
            raise SpecError(f"logistic.c={self.c:g}: must be above 0")

    def classifier(self, matrix: TrainingMatrix) -> Any:
        """The regression with the c that suits the samples."""
        from sklearn.linear_model import LogisticRegression

        return LogisticRegression(C=self.c or USUAL_C[matrix.kind], max_iter=MAX_ITERATIONS)

    def arrays(self, matrix: TrainingMatrix) -> Arrays:
        """Weight and bias of a linear layer, of inputs that are not standardized."""
        values = matrix.x.astype(np.float64)
        if not matrix.is_sparse:
            mean, std = matrix.moments()
            values -= mean
            values /= std
        fitted = self.classifier(matrix).fit(values, matrix.y)
        return linear_arrays(fitted, matrix)


def linear_arrays(fitted: Any, matrix: TrainingMatrix) -> Arrays:
    """Weight and bias of a linear classifier of scikit-learn, for inputs as they are."""
    rows, offsets = fitted.coef_, fitted.intercept_
    if len(rows) == 1:
        # One row for two classes. Half of it for each class gives the same probabilities.
        rows, offsets = (np.concatenate([-value, value]) / 2 for value in (rows, offsets))
    mean, std = matrix.moments()
    rows = rows / std
    offsets = offsets - rows @ mean
    weight = np.zeros((matrix.classes, rows.shape[1]), np.float32)
    bias = np.full(matrix.classes, offsets.min() - ABSENT_CLASS_MARGIN, np.float32)
    weight[fitted.classes_], bias[fitted.classes_] = rows, offsets
    return {"weight": weight, "bias": bias}
