"""URM: ERM with tanh as its limit, and smoothed targets."""

import copy

import torch
import torch.nn.functional as F

from afield.training.method import pool
from afield.training.methods.urm import URM


def test_without_a_weight_it_is_erm_with_bounded_features(model, task, stream):
    batches = next(stream)
    pooled, plain = pool(batches), copy.deepcopy(model)
    for output, bound in (("tanh", torch.tanh), ("relu", torch.relu)):
        method = URM(weight=0.0, output=output)
        learner = method.setup(copy.deepcopy(model), task)
        expected = plain.head(bound(plain.features(pooled.x)))
        torch.testing.assert_close(learner.model(pooled.x), expected)
        loss = method.update(learner, batches)["loss"]
        torch.testing.assert_close(loss, F.cross_entropy(expected, pooled.y).detach())


def test_targets_are_smoothed(model, task, stream):
    method = URM(smoothing=0.2)
    learner, batches = method.setup(model, task), next(stream)
    critic = copy.deepcopy(learner.parts["critic"])
    z = learner.model.bounded_features(pool(batches).x).detach()
    half, noise = torch.full((len(z), 1), 0.5), torch.rand_like(z)
    for name, value in (("uniform", noise), ("soft_true", half), ("soft_fake", half)):
        object.__setattr__(method, name, lambda _, value=value: value)
    logs = method.update(learner, batches)
    real, fake = critic(2 * noise - 1), critic(z)
    true = F.binary_cross_entropy_with_logits(real, torch.full_like(real, 0.9))
    false = F.binary_cross_entropy_with_logits(fake, torch.full_like(fake, 0.1))
    torch.testing.assert_close(logs["critic loss"], (true + 0.1 * false).detach())
