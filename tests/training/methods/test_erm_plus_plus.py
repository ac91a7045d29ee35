"""ERM++: the reference numbers of its average, and the linear start."""

import copy

import torch

from afield.training.averages.swa import SWA
from afield.training.methods.erm_plus_plus import ERMPlusPlus
from tests.training.methods.references import Reference

# DomainBed's linear_steps=0 is one step; its learning rate is 0.02, that of the run 0.05.
SETTINGS = {"linear_share": 0.25, "linear_rate": 0.4}


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
