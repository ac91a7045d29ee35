"""ARM: ERM as its limit, support sets, and the context network."""

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from afield.networks.backbone import Classifier, network
from afield.training.learner import Task
from afield.training.method import pool
from afield.training.methods.arm import ARM
from tests.training.methods.reference import batch_of


@pytest.fixture
def images(task) -> Task:
    return replace(task, shape=(2, 6, 6))


def cnn() -> Classifier:
    layers = [nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return Classifier(nn.Sequential(*layers), 4, 4)


def batches(*sizes: int):
    return [
        batch_of(torch.randn(size, 2, 6, 6), torch.randint(4, (size,)), domain)
        for domain, size in enumerate(sizes)
    ]


def test_without_weights_for_the_context_it_is_erm(images):
    plain, given = cnn(), batches(5, 3)
    learner = ARM(context_channels=3).setup(copy.deepcopy(plain), images)
    learner.train()
    nn.init.zeros_(learner.model.features[0].weight[:, 2:])
    loss, _ = ARM().loss(learner, given)
    pooled = pool(given)
    torch.testing.assert_close(loss, F.cross_entropy(plain(pooled.x), pooled.y))


def test_the_batch_of_a_domain_is_a_support_set_whatever_its_size(images):
    learner, given = ARM(context_channels=3).setup(cnn(), images), batches(5, 3)
    net = learner.model.eval()
    x = pool(given).x
    apart = torch.cat([net(batch.x) for batch in given])
    torch.testing.assert_close(net(x, [5, 3]), apart)
    assert not torch.allclose(net(x), apart)


def test_the_context_network_is_trained_and_its_batchnorm_is_never_frozen(images):
    plain = cnn()
    plain.freeze_bn = True
    learner = ARM(context_channels=3).setup(plain, images)
    learner.train()
    assert learner.model.context[1].training
    before = learner.model.context[6].weight.detach().clone()
    ARM().update(learner, batches(5, 3))
    assert not torch.equal(learner.model.context[6].weight, before)


def test_it_takes_all_kinds_of_networks_for_images(images):
    for name in ("small:cnn", "small:lenet", "small:mnist_cnn", "small:vit"):
        net = network(name, (3, 32, 32), 4)
        learner = ARM(context_channels=3).setup(net, replace(images, shape=(3, 32, 32)))
        assert learner.model(torch.randn(2, 3, 32, 32)).shape == (2, 4)
