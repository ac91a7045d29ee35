"""SagNet: the reference numbers, ERM as a limit of its first phase, and turns."""

import copy
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import nn

from afield.networks.backbone import Classifier
from afield.training.method import pool
from afield.training.methods.sagnet import SagNet
from tests.training.methods.reference import batch_of
from tests.training.methods.references import Reference, replay


def test_two_updates_equal_the_reference():
    logs = {"loss_c": "loss", "loss_s": "style loss", "loss_adv": "adversary loss"}
    learner = replay("sagnet", SagNet(weight=0.5), logs=logs, gradients=())
    # The last phase is the features' turn; the head keeps no gradient.
    for key, value in Reference("sagnet").below("grad/step2/features.").items():
        torch.testing.assert_close(learner.model.features.get_parameter(key).grad, value)
    assert learner.model.head.weight.grad is None


def test_with_every_sample_its_own_partner_the_first_phase_is_erm(model, task, stream):
    method, batches = SagNet(), next(stream)
    plain = copy.deepcopy(model)
    object.__setattr__(
        method, "content", lambda key, z, n: torch.rand(n) if key == "alpha" else torch.arange(n)
    )
    logs = method.update(method.setup(model, task), batches)
    pooled = pool(batches)
    torch.testing.assert_close(logs["loss"], F.cross_entropy(plain(pooled.x), pooled.y).detach())


def test_styles_of_a_map_are_randomized_where_the_network_has_one(task):
    layers = [nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    model, method = Classifier(nn.Sequential(*layers), 3, 4), SagNet(at="map")
    learner = method.setup(model, replace(task, shape=(1, 4, 4)))
    assert learner.layers == ("features.1",)
    method.update(learner, [batch_of(torch.randn(6, 1, 4, 4), torch.arange(6) % 4, 0)])
    assert not model.features[1]._forward_hooks
