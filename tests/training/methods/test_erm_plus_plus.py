"""ERM++: the reference numbers with its average, the linear start, and ERM as its limit."""

import copy

import pytest
import torch

from afield.errors import SpecError
from afield.training.averages.swa import SWA
from afield.training.methods.erm import ERM
from afield.training.methods.erm_plus_plus import ERMPlusPlus
from tests.training.methods.reference import theta
from tests.training.methods.references import Reference, replay

# DomainBed's linear_steps=0 is one step; its learning rate is 0.02, that of the run 0.05.
SETTINGS = {"linear_share": 0.25, "linear_rate": 0.4}


def test_two_updates_equal_the_reference():
    replay("erm_plus_plus", ERMPlusPlus(**SETTINGS), skip=["average."])


def test_the_average_of_the_paper_is_swa_at_every_step():
    reference, method, average = Reference("erm_plus_plus"), ERMPlusPlus(**SETTINGS), SWA(0.0, 1)
    learner = reference.learner(method)
    average.setup(learner.model, steps=4)
    for update in reference.updates:
        method.update(learner, reference.batches(update))
        learner.step += 1
        average.after_step(learner.model)
        for name, value in reference.below(f"step{update}/average.").items():
            torch.testing.assert_close(average.model.state_dict()[name], value, rtol=0, atol=1e-10)


def test_only_the_head_moves_at_first(model, task, stream):
    method = ERMPlusPlus(linear_share=0.02)
    learner = method.setup(model, task)
    before = copy.deepcopy(model)
    for learner.step in (0, 1):
        method.update(learner, next(stream))
    assert torch.equal(model.features[0].weight, before.features[0].weight)
    assert not torch.equal(model.head.weight, before.head.weight)
    learner.step = 2
    method.update(learner, next(stream))
    assert not torch.equal(model.features[0].weight, before.features[0].weight)


def test_without_a_linear_start_it_is_erm_bit_for_bit(model, task, stream):
    methods = ERMPlusPlus(linear_share=0.0), ERM()
    learners = [method.setup(copy.deepcopy(model), task) for method in methods]
    for _ in range(3):
        batches = next(stream)
        for method, learner in zip(methods, learners, strict=True):
            method.update(learner, batches)
    assert torch.equal(*(theta(learner.model) for learner in learners))


def test_impossible_settings_are_refused():
    with pytest.raises(SpecError, match="linear_share"):
        ERMPlusPlus(linear_share=1.0)
    with pytest.raises(SpecError, match="linear_rate"):
        ERMPlusPlus(linear_rate=-1.0)
