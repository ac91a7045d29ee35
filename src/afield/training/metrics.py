"""Metrics by name: what a table can show, and what a rule can select by.

    accuracy            share of the samples that are classified correctly
    balanced_accuracy   mean over classes of the accuracy on the samples of the class
    macro_f1            mean over classes of F1 = 2 hits / (samples + predictions), as in WILDS
    worst_class         accuracy on the class with the lowest accuracy
    auroc               area under the ROC curve, for two classes
    nll                 negative log-likelihood: mean cross-entropy, in nats
    worst_group         accuracy on the group of samples with the lowest accuracy
    p10_group           10th percentile of the accuracies on the groups (linear interpolation)
    mean_group          mean of the accuracies on the groups

Classes and groups without samples in a split do not count there. Each is computed for one split of
one domain.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from afield.errors import SpecError, UnknownNameError
from afield.registry import hint

# The command line lists the metrics in its help: nothing here imports torch or numpy.
if TYPE_CHECKING:
    from afield.training.scores import Score


DEFAULT_METRIC = "accuracy"


@dataclass(frozen=True)
class Metric:
    """A metric: what captions call it, and how to read it.

    `field` is the field of `Score` that holds it; empty means its entry in `Score.metrics`.
    `is_share` is false for numbers that are not between 0 and 1, which are not shown in percent.
    `of_groups` marks metrics that need groups of samples. `lacking` says why a record may lack it.
    """

    title: str
    field: str = ""
    lower_is_better: bool = False
    is_share: bool = True
    of_groups: bool = False
    lacking: str = ""


_EARLIER = "not in records of an earlier version; repeat the runs in another store to have it"
_ONE_CLASS = "a split with one class, more than two classes, or a record of an earlier version"
_UNGROUPED = "no groups were counted; repeat the bench with --group"

METRICS = {
    "accuracy": Metric("accuracy", field="accuracy"),
    "balanced_accuracy": Metric("balanced accuracy", field="balanced_accuracy"),
    "macro_f1": Metric("macro F1", lacking=_EARLIER),
    "worst_class": Metric("accuracy on the worst class", lacking=_EARLIER),
    "auroc": Metric("AUROC", lacking=_ONE_CLASS),
    "nll": Metric("negative log-likelihood", field="loss", lower_is_better=True, is_share=False),
    "worst_group": Metric("accuracy on the worst group", of_groups=True, lacking=_UNGROUPED),
    "p10_group": Metric(
        "10th percentile of the accuracies on groups", of_groups=True, lacking=_UNGROUPED
    ),
    "mean_group": Metric("mean accuracy over groups", of_groups=True, lacking=_UNGROUPED),
}


def find_metric(name: str) -> Metric:
    """The metric of this name; empty means accuracy."""
    if name and name not in METRICS:
        raise UnknownNameError(f"no metric {name!r}; {hint(name, list(METRICS))}")
    return METRICS[name or DEFAULT_METRIC]


def metric_value(score: Score, name: str = "") -> float | None:
    """The value of a metric; None if the score does not hold it."""
    metric = find_metric(name)
    if metric.field:
        return float(getattr(score, metric.field))
    return (score.metrics or {}).get(name)


def selection_score(score: Score, name: str = "") -> float | None:
    """A metric as a finite number of which more is better, for selection rules.

    >>> from afield.training.scores import Score
    >>> selection_score(Score(0.5, 0.5, loss=2.0, size=4), "nll")
    -2.0
    """
    return selection_scores([metric_value(score, name)], name)[0]


def selection_scores(values: Sequence[float | None], name: str = "") -> list[float | None]:
    """Values of a metric as `selection_score` gives them."""
    sign = -1.0 if find_metric(name).lower_is_better else 1.0
    worst = -sys.float_info.max
    return [
        None if value is None else sign * value if math.isfinite(value) else worst
        for value in values
    ]


def check_classes(name: str, classes: int, dataset: str) -> None:
    """Raise an error if a metric does not exist for this number of classes."""
    if name == "auroc" and classes != 2:
        raise SpecError(
            f"auroc needs two classes, but {dataset} has {classes}; use macro_f1 or "
            "balanced_accuracy"
        )
