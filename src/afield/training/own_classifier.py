"""A classifier of scikit-learn, passed in Python, as a row of a benchmark.

    afield.bench("heart.csv", methods=["erm", RandomForestClassifier(500)])

A fresh copy is fitted in every run, to the inputs that classical methods get (a sparse matrix of
TF-IDF for texts), with the seed of the run if its random state is free. It predicts as long as its
run lasts. What it has learned could only be pickled, so nothing of it is stored: such a row has
accuracies and calibration, but there is no model to fit, reopen or export.
"""

import hashlib
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from afield import registry
from afield.errors import SpecError
from afield.networks.backbone import Classifier
from afield.training.classical_method import (
    ABSENT_CLASS_MARGIN,
    Arrays,
    ClassicalMethod,
    TrainingMatrix,
    fitting,
)

# The smallest probability whose logarithm is taken.
LEAST = 1e-6


def is_classifier(value: Any) -> bool:
    """Whether an object is a classifier of scikit-learn, or a class of them."""
    if not all(callable(getattr(value, name, None)) for name in ("fit", "predict", "get_params")):
        return False
    from sklearn.base import is_classifier as is_one

    try:
        return bool(is_one(value() if isinstance(value, type) else value))
    # What a class needs to be made, or a stranger's tags, may be missing.
    except (TypeError, AttributeError):
        return False


def classifier_name(classifier: Any) -> str:
    """Its class, and a digest of its settings unless all have their defaults."""
    kind = type(classifier).__name__
    settings, usual = _settings(classifier), ""
    # Some classes cannot be made without settings.
    with suppress(TypeError):
        usual = _settings(type(classifier)())
    digest = hashlib.sha256(settings.encode()).hexdigest()[:6]
    return kind if settings == usual else f"{kind}_{digest}"


def classifier_source(classifier: Any) -> str:
    """What decides its results, as a text: its class, version and settings."""
    kind = type(classifier)
    package = __import__(kind.__module__.partition(".")[0])
    version = getattr(package, "__version__", "")
    return f"{kind.__module__}.{kind.__qualname__} {version} {_settings(classifier)}"


def _settings(classifier: Any) -> str:
    """All settings in a fixed order, without places in memory."""
    values = sorted(classifier.get_params(deep=True).items())
    return re.sub(r" at 0x[0-9a-f]+", "", repr(values))


class ClassifierHead(nn.Module):
    """The scores of a fitted classifier; without one, it cannot predict."""

    def __init__(self, name: str, classes: int) -> None:
        super().__init__()
        self.name, self.classes = name, classes
        self.fitted: Any = None

    def forward(self, x: Tensor) -> Tensor:
        """Samples × classes: logarithms of probabilities, or decisions."""
        if self.fitted is None:
            raise SpecError(not_stored(self.name))
        values, known = x.cpu().numpy(), np.asarray(self.fitted.classes_)
        scores = np.full((len(values), self.classes), -ABSENT_CLASS_MARGIN, np.float32)
        with fitting(torch.get_num_threads()):
            scores[:, known] = self._known_scores(values, known)
        return torch.from_numpy(scores).to(x.device)

    def _known_scores(self, values: Any, known: Any) -> Any:
        """The scores of the classes that the sources have."""
        if hasattr(self.fitted, "predict_proba"):
            return np.log(np.clip(self.fitted.predict_proba(values), LEAST, 1.0))
        if hasattr(self.fitted, "decision_function"):
            decisions = self.fitted.decision_function(values)
            if decisions.ndim == 1:
                return np.stack([-decisions, decisions], axis=1) / 2
            if decisions.shape[1] == len(known):
                return decisions
        return (self.fitted.predict(values)[:, None] == known).astype(np.float32)


def not_stored(name: str) -> str:
    """Why there is no model of a classifier that was passed in Python."""
    return (
        f"{name}: a classifier that is passed in Python could only be stored as a pickle, which "
        "afield never reads, so it has rows but no model; use logistic, extra_trees, "
        "boosted_trees, svm or nearest"
    )


def check_stored(method: Any) -> None:
    """Refuse a method, or its name, of which no model can be stored."""
    if not isinstance(method, str):
        name = type(method).__name__
        named = f"{name}: give the name of a method, such as erm"
        raise SpecError(not_stored(name) if is_classifier(method) else named)
    if registry.is_classical(method) and not registry.find("methods", method).is_stored:
        raise SpecError(not_stored(method))


def own_classifier(classifier: Any) -> type[ClassicalMethod]:
    """The classical method that fits copies of a classifier."""

    @dataclass(frozen=True)
    class OwnClassifier(ClassicalMethod):
        """A classifier of scikit-learn that was passed in Python."""

        is_stored: ClassVar[bool] = False

        @property
        def name(self) -> str:
            """The name under which it is registered."""
            return classifier_name(classifier)

        def classifier(self, matrix: TrainingMatrix) -> Any:
            """A fresh copy, with the seed of the run if its own is free."""
            from sklearn.base import clone

            copy = clone(classifier)
            free = [
                name
                for name, value in copy.get_params(deep=True).items()
                if name.rpartition("__")[2] == "random_state" and value is None
            ]
            return copy.set_params(**dict.fromkeys(free, matrix.seed % 2**32))

        def arrays(self, matrix: TrainingMatrix) -> Arrays:
            """There are none."""
            raise SpecError(not_stored(self.name))

        def fit_head(self, model: nn.Module, matrix: TrainingMatrix) -> None:
            """Fit a copy, which stays in memory."""
            self.check_classes(matrix)
            head = ClassifierHead(self.name, matrix.classes)
            with fitting(matrix.threads):
                head.fitted = self.classifier(matrix).fit(matrix.x, matrix.y)
            if isinstance(model, Classifier):
                model.head = head  # type: ignore[assignment]  # every head maps alike

    OwnClassifier.__module__ = f"{__name__}.{classifier_name(classifier)}"
    return OwnClassifier
