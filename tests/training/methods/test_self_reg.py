"""SelfReg: pairs, and the weight of its penalty."""

import torch
import torch.nn.functional as F
from torch import nn

from afield.training.method import pool
from afield.training.methods.self_reg import SelfReg
from tests.training.methods.reference import batch_of


def test_pairs_are_of_one_class_and_every_sample_is_in_one():
    y = torch.tensor([0, 0, 0, 2, 2, 5, 5, 5, 5])
    torch.manual_seed(0)
    for _ in range(5):
        places = SelfReg().shuffle1(y)
        assert torch.equal(y[places], y)
        assert sorted(places.tolist()) == list(range(9))
    assert not torch.equal(SelfReg().shuffle1(y), SelfReg().shuffle2(y))


def test_with_one_sample_of_each_class_logits_are_not_compared(model, task):
    learner = SelfReg().setup(model, task)
    learner.train()
    batch = batch_of(torch.randn(4, 6), torch.tensor([2, 0, 3, 1]), 0)
    nn.init.zeros_(learner.parts["projection"][7].weight)
    loss, logs = SelfReg().loss(learner, [batch])
    z = model.features(batch.x)
    # Then only features and the projection, here zero, differ.
    torch.testing.assert_close(logs["penalty"], 0.3 * z.square().mean().detach())
    risk = F.cross_entropy(model.head(z), batch.y).detach()
    torch.testing.assert_close(loss.detach(), risk + risk.clamp(max=1) * logs["penalty"])


def test_a_risk_below_one_lowers_the_weight_of_the_penalty(model, task, stream):
    learner = SelfReg().setup(model, task)
    batches = next(stream)
    for _ in range(100):
        learner.descend(F.cross_entropy(model(pool(batches).x), pool(batches).y))
    loss, logs = SelfReg().loss(learner, batches)
    assert logs["risk"] < 0.5
    torch.testing.assert_close(loss.detach(), logs["risk"] * (1 + logs["penalty"]))
