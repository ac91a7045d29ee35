"""Transfer: the ball around the head, and ERM as its limit."""

import pytest
import torch

from afield.training.methods.transfer import Transfer
from tests.training.methods.references import assert_trains_as_erm


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
    learner = assert_trains_as_erm(Transfer(weight=0.0), model, task, stream)
    assert torch.equal(learner.parts["adversary"].weight, learner.model.head.weight)
