"""Transfer: the reference numbers, the ball around the head, and ERM as its limit."""

import copy

import pytest
import torch

from afield.errors import SpecError
from afield.training.methods.erm import ERM
from afield.training.methods.transfer import Transfer
from tests.training.methods.reference import theta
from tests.training.methods.references import replay


def test_two_updates_equal_the_reference():
    method = Transfer(weight=1.0, radius=0.3, ascents=3, ascent_rate=2.0)
    # The file's gradients have those of the ascents subtracted, which no optimizer got.
    replay("transfer", method, logs={"loss": "loss", "gap": "gap"}, gradients=())


def test_the_adversary_is_pulled_back_into_the_ball():
    head = [torch.zeros(2, 2), torch.zeros(2)]
    for length, expected in ((10.0, 2.0), (1.0, 1.0)):
        adversary = [torch.full((2, 2), length / 2), torch.zeros(2)]
        Transfer(radius=2.0).project(adversary, head)
        assert torch.cat([a.flatten() for a in adversary]).norm() == pytest.approx(expected)


def test_an_adversary_at_the_head_stays_there():
    head = [torch.ones(2, 2)]
    adversary = [torch.ones(2, 2)]
    Transfer(radius=0.0).project(adversary, head)
    assert torch.equal(adversary[0], head[0])


def test_without_a_weight_it_is_erm_bit_for_bit(model, task, stream):
    methods = Transfer(weight=0.0), ERM()
    learners = [method.setup(copy.deepcopy(model), task) for method in methods]
    for _ in range(3):
        batches = next(stream)
        for method, learner in zip(methods, learners, strict=True):
            method.update(learner, batches)
    assert torch.equal(*(theta(learner.model) for learner in learners))
    adversary = learners[0].parts["adversary"]
    assert torch.equal(adversary.weight, learners[0].model.head.weight)


def test_one_domain_and_impossible_settings_are_refused():
    with pytest.raises(SpecError, match="needs 2 or more source domain"):
        Transfer().check(1)
    for settings in ({"weight": -1.0}, {"ascents": 0}):
        with pytest.raises(SpecError, match="transfer"):
            Transfer(**settings)
