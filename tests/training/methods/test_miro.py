"""MIRO: the reference numbers, its stages, a frozen start, and ERM as its limit."""

import copy
import logging
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import nn

from afield.networks.backbone import Classifier, network
from afield.training.methods import miro
from afield.training.methods.miro import MIRO
from tests.training.methods.references import assert_trains_as_erm, replay


def test_two_updates_equal_the_reference():
    learner = replay("miro", MIRO(weight=0.5), logs={"loss": "loss", "reg_loss": "penalty"})
    assert learner.layers == ("features.1", "features.3")


def test_the_variances_start_at_a_tenth(model, task):
    (spread,) = MIRO().setup(model, task).parts["spread"]
    torch.testing.assert_close(F.softplus(spread) + 1e-5, torch.full_like(spread, 0.1))


def test_without_a_weight_it_is_erm_bit_for_bit(model, task, stream):
    learner = assert_trains_as_erm(MIRO(weight=0.0), model, task, stream)
    assert torch.equal(learner.parts["first"][0].weight, model.features[0].weight)


def test_it_compares_the_blocks_of_a_cnn_and_four_of_a_transformer(task):
    net = network("timm:resnet10t", (3, 32, 32), 4)
    layers = MIRO().setup(net, replace(task, shape=(3, 32, 32))).layers
    assert layers == ("features.act1", *(f"features.layer{i}" for i in (1, 2, 3, 4)))
    blocks = [nn.Linear(3, 3) for _ in range(8)]
    net = Classifier(nn.Sequential(nn.Unflatten(1, (2, 3)), *blocks, nn.Flatten()), 6, 4)
    layers = MIRO().setup(net, task).layers
    assert layers == tuple(f"features.{i}" for i in (2, 4, 6, 8))


def test_random_weights_are_warned_about(model, task, caplog):
    miro._warn_of_random_start.cache_clear()
    with caplog.at_level(logging.WARNING):
        MIRO().setup(copy.deepcopy(model), task)
        assert not caplog.records
        MIRO().setup(model, replace(task, pretrained=False))
    assert "pretrained --weights" in caplog.text
