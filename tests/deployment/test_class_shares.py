"""Shares of the classes without labels, and what tells new samples from old ones."""

import numpy as np
import pytest
import torch

from afield.deployment.changes import measure_separation, strange_classes
from afield.deployment.class_shares import (
    estimate_class_shares,
    mean_confusion,
    solve_shares,
    true_shares,
    with_shares,
)
from afield.deployment.held_out import DomainOutputs


def domain(seed, count=1500, shift=0.0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (count,), generator=generator)
    logits = 3 * torch.nn.functional.one_hot(labels, 4).float()
    logits = logits + 1.5 * torch.randn(count, 4, generator=generator)
    distance = 1 + shift + torch.rand(count, generator=generator)
    return DomainOutputs(str(seed), logits, labels, {"distance": distance})


HELD_OUT = [domain(seed) for seed in range(4)]
SKEWED = np.array([0.7, 0.1, 0.1, 0.1])


def test_shares_that_changed_are_found_and_explain_nothing_if_classes_are_alike():
    new = with_shares(domain(9), SKEWED, 0)
    result = estimate_class_shares(HELD_OUT, new)
    assert result.new == pytest.approx(true_shares(new).tolist(), abs=0.05)
    assert result.before == pytest.approx([0.25] * 4, abs=0.03)
    assert result.has_changed
    assert result.change == pytest.approx(0.45, abs=0.06)
    assert abs(result.explained) < 0.03


def test_shares_that_did_not_change_are_no_change():
    result = estimate_class_shares(HELD_OUT, domain(10))
    assert result.is_trusted
    assert not result.has_changed or result.change < 0.06


def test_a_class_that_is_hard_explains_a_drop_where_it_is_frequent():
    hard = [
        DomainOutputs(d.name, d.logits * torch.tensor([0.5, 1, 1, 1]), d.labels, d.scores)
        for d in HELD_OUT
    ]
    new = with_shares(hard[0], SKEWED, 0)
    result = estimate_class_shares(hard[1:], new)
    drop = np.mean([each.accuracy for each in hard[1:]]) - new.accuracy
    assert result.explained == pytest.approx(-drop, abs=0.04)


def test_predictions_without_information_are_not_trusted():
    blind = [
        DomainOutputs(d.name, d.logits[torch.randperm(len(d))], d.labels, d.scores)
        for d in HELD_OUT
    ]
    assert not estimate_class_shares(blind, blind[0]).has_changed


def test_em_finds_the_most_likely_shares():
    confusion = mean_confusion(HELD_OUT)
    assert confusion.sum(axis=1) == pytest.approx([1] * 4)
    found = solve_shares(confusion, 1000 * SKEWED @ confusion)
    assert found == pytest.approx(SKEWED, abs=1e-3)


def test_a_classifier_tells_strange_samples_and_nothing_else():
    near = measure_separation(HELD_OUT, domain(7))
    far = measure_separation(HELD_OUT, domain(7, shift=2.0))
    assert near.new == pytest.approx(0.5, abs=0.06)
    assert len(near.held_out) == 4
    assert far.new > 0.99
    assert far.is_larger
    assert measure_separation(HELD_OUT, domain(7, count=5)) is None


def test_strange_classes_come_first():
    rows = strange_classes(["a", "b", "a", "c"], [10.0, 90.0, 20.0, 50.0], count=2)
    assert rows == (("b", 1, 90.0), ("c", 1, 50.0))
