"""MixStyle and EFDMix in a network: limits, partners, stages. Numbers: networks/test_styles.py."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from afield.data.samples import Batch
from afield.networks.backbone import Classifier, network
from afield.training.learner import Task
from afield.training.methods.efdmix import EFDMix
from afield.training.methods.erm import ERM
from afield.training.methods.mixstyle import MixStyle
from tests.training.methods.reference import batch_of, theta


@pytest.fixture
def images(task) -> Task:
    return replace(task, shape=(2, 6, 6))


def cnn() -> Classifier:
    layers = [nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, stride=2), nn.ReLU()]
    return Classifier(nn.Sequential(*layers, nn.Flatten()), 16, 4)


def batches() -> list[Batch]:
    return [batch_of(torch.randn(5, 2, 6, 6), torch.randint(4, (5,)), d) for d in range(3)]


def test_without_other_styles_they_are_erm(images):
    torch.manual_seed(0)
    net, given = cnn(), batches()
    plain = ERM().setup(copy.deepcopy(net), images)
    ERM().update(plain, given)
    for kind in (MixStyle, EFDMix):
        never = kind(probability=0.0)
        learner = never.setup(copy.deepcopy(net), images)
        never.update(learner, given)
        assert torch.equal(theta(learner.model), theta(plain.model))
        alone = kind(probability=1.0)
        object.__setattr__(alone, "lam", lambda x: torch.ones(len(x)))
        learner = alone.setup(copy.deepcopy(net), images)
        loss, _ = alone.loss(learner, given)
        expected, _ = ERM().loss(learner, given)
        torch.testing.assert_close(loss, expected)


def test_they_mix_behind_early_blocks_in_training_only(images):
    net, given = cnn(), batches()
    net.eval()
    before = net(given[0].x)
    for kind in (MixStyle, EFDMix):
        for stages, layers in ((1, ("features.1",)), (3, ("features.1", "features.3"))):
            method = kind(stages=stages, probability=1.0)
            learner = method.setup(net, images)
            assert learner.layers == layers
            loss, _ = method.loss(learner, given)
            assert loss != ERM().loss(learner, given)[0]
    assert torch.equal(net(given[0].x), before)


def test_the_stem_of_a_resnet_does_not_count(images):
    net = network("timm:resnet10t", (3, 32, 32), 4)
    learner = MixStyle(stages=3).setup(net, replace(images, shape=(3, 32, 32)))
    assert learner.layers == ("features.layer1", "features.layer2", "features.layer3")


def test_partners_are_of_another_domain():
    sizes = [3, 5, 4]
    domain = torch.repeat_interleave(torch.arange(3), torch.tensor(sizes))
    for _ in range(5):
        assert (domain[MixStyle().perm(sizes)] != domain).all()
        assert sorted(MixStyle().perm([4, 4]).tolist()) == list(range(8))
        for method, given in ((MixStyle(partners="random"), sizes), (MixStyle(), [12])):
            assert sorted(method.perm(given).tolist()) == list(range(12))


def test_shares_are_drawn_for_each_sample_from_beta():
    torch.manual_seed(0)
    shares = MixStyle(alpha=0.1).lam(torch.zeros(20_000, dtype=torch.float64))
    assert shares.shape == (20_000,)
    # Var = 1 / (4 (2 α + 1))
    assert shares.mean() == pytest.approx(0.5, abs=0.01)
    assert shares.var() == pytest.approx(1 / 4.8, abs=0.005)
