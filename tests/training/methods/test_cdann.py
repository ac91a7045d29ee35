"""CDANN: DANN within every class, each class alike."""

import copy
from dataclasses import replace

import torch
import torch.nn.functional as F

from afield.training.method import pool
from afield.training.methods.cdann import CDANN
from afield.training.methods.dann import DANN
from tests.training.methods.reference import theta


def set_up(kind, model, task, **settings):
    torch.manual_seed(0)
    method = kind(**settings)
    learner = method.setup(copy.deepcopy(model), task)
    learner.step = task.steps // 2
    return method, learner


def test_every_class_of_a_batch_has_the_same_weight(model, task, stream):
    method, learner = set_up(CDANN, model, task)
    torch.nn.init.normal_(learner.parts["classes"].weight)
    batch = pool(next(stream))
    # Classes of unequal size, and one that is not there.
    batch = batch._replace(y=torch.where(batch.y == 3, 0, batch.y))
    features = learner.model.features(batch.x)
    _, loss = method.domain_loss(learner, features, batch)
    classes = learner.parts["classes"](batch.y)
    losses = F.cross_entropy(
        learner.parts["domain"](features + classes), batch.domain, reduction="none"
    )
    means = [losses[batch.y == c].mean() for c in range(3)]
    torch.testing.assert_close(loss, torch.stack(means).mean())


def test_with_one_class_it_is_dann(model, task, stream):
    alone = replace(task, classes=("a",))
    (ours, ours_learner), (plain, plain_learner) = (
        set_up(kind, model, alone) for kind in (CDANN, DANN)
    )
    ours_learner.parts["classes"].requires_grad_(requires_grad=False)
    for _ in range(3):
        batches = [b._replace(y=torch.zeros_like(b.y)) for b in next(stream)]
        ours.update(ours_learner, batches)
        plain.update(plain_learner, batches)
    torch.testing.assert_close(theta(ours_learner.model), theta(plain_learner.model))


def test_it_receives_the_class_and_learns_to_use_it(model, task, stream):
    method, learner = set_up(CDANN, model, task)
    assert not learner.parts["classes"].weight.any()
    for _ in range(3):
        method.update(learner, next(stream))
    assert learner.parts["classes"].weight.any(dim=1).all()


def test_without_reversal_the_features_are_those_of_dann_without(model, task, stream):
    (ours, ours_learner), (plain, plain_learner) = (
        set_up(kind, model, task, weight=0.0) for kind in (CDANN, DANN)
    )
    for _ in range(3):
        batches = next(stream)
        ours.update(ours_learner, batches)
        plain.update(plain_learner, batches)
    assert torch.equal(theta(ours_learner.model), theta(plain_learner.model))
