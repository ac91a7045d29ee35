"""A second pass at other weights: it differs from the first in the weights alone."""

import copy

import torch
from torch import nn

from afield.networks.backbone import Classifier
from afield.training.building_blocks.second_pass import backward_at_offset, norm
from afield.training.learner import Learner


def test_both_passes_draw_the_same_and_batchnorm_counts_one(task):
    features = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))
    learner = Learner(Classifier(features, 8, 4), task)
    learner.train()
    once = copy.deepcopy(learner.model)
    x = torch.randn(16, 6)
    torch.manual_seed(3)
    once(x)
    state = torch.get_rng_state()
    torch.manual_seed(3)
    here, there, _ = backward_at_offset(
        learner, lambda: learner.model(x).square().mean(), lambda g: [0 * each for each in g]
    )
    assert here == there
    assert torch.equal(torch.get_rng_state(), state)
    for name, value in learner.model.state_dict().items():
        assert torch.equal(value, once.state_dict()[name]), name
    assert all(m.track_running_stats for m in features if isinstance(m, nn.BatchNorm1d))


def test_the_gradient_is_that_of_the_moved_weights(model, task):
    learner = Learner(model, task)
    x, before = torch.randn(16, 6), copy.deepcopy(model)
    backward_at_offset(
        learner, lambda: model(x).square().mean(), lambda g: [torch.full_like(e, 0.1) for e in g]
    )
    for old, new in zip(before.parameters(), model.parameters(), strict=True):
        assert torch.equal(old, new)
        old.data.add_(0.1)
    before(x).square().mean().backward()
    for old, new in zip(before.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(new.grad, old.grad)


def test_the_norm_is_that_of_all_tensors_together():
    assert norm([torch.tensor([3.0]), torch.tensor([[4.0]])]) == 5
