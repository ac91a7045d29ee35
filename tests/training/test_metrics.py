"""Metrics by name: found, read off a score, and refused where they do not exist."""

import math

import pytest

from afield.errors import SpecError, UnknownNameError
from afield.training.metrics import (
    METRICS,
    check_classes,
    find_metric,
    metric_value,
    selection_score,
)
from afield.training.scores import Score

SCORE = Score(0.9, 0.8, 0.7, 10, metrics={"macro_f1": 0.6})


def test_a_metric_is_read_off_a_score():
    names = ["", "accuracy", "balanced_accuracy", "nll", "macro_f1", "worst_class"]
    assert [metric_value(SCORE, name) for name in names] == [0.9, 0.9, 0.8, 0.7, 0.6, None]


def test_selection_prefers_a_low_loss_and_never_compares_nan():
    assert selection_score(SCORE, "nll") == -0.7
    assert selection_score(SCORE, "macro_f1") == 0.6
    assert selection_score(SCORE, "auroc") is None
    for loss in (math.nan, math.inf):
        assert -math.inf < selection_score(Score(0.9, 0.8, loss, 10), "nll") < -1e300


def test_an_unknown_metric_is_refused_with_a_guess():
    with pytest.raises(UnknownNameError, match="no metric 'macro_f2'; did you mean 'macro_f1'"):
        find_metric("macro_f2")


def test_auroc_is_refused_for_three_classes():
    check_classes("auroc", 2, "spirals")
    for name in METRICS:
        if name != "auroc":
            check_classes(name, 3, "things")
    with pytest.raises(SpecError, match="auroc needs two classes, but things has 3; use macro_f1"):
        check_classes("auroc", 3, "things")
