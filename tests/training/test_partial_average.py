"""An average of the trained part of a network is that of the whole network."""

import copy

import pytest
import torch
from torch import nn

from afield import registry
from afield.networks.backbone import Classifier
from afield.training.partial_average import PartialAverage
from afield.training.scores import Checkpoint, Score, Scores

AVERAGES = registry.names("averages")
STEPS, EVERY = 12, 2


def network():
    """A network of which the last layers are trained, and statistics that change."""
    torch.manual_seed(0)
    features = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 4))
    net = Classifier(features, 4, 3)
    net.features[0].requires_grad_(requires_grad=False)
    return net


def checkpoint(step):
    # The loss falls, and rises again: a valley for SWAD.
    loss = abs(step - 5) / 5 + 0.1
    score = Score(0.5, 0.5, loss, 10)
    return Checkpoint(step, {"source": Scores(main=score, probe=score)}, {})


def averaged(average, net, *, stop=STEPS, start=0):
    """Change the trained weights at random, and let the average see them."""
    if not start:
        average.setup(net, steps=STEPS)
    for step in range(start + 1, stop + 1):
        generator = torch.Generator().manual_seed(step)
        with torch.no_grad():
            for parameter in net.parameters():
                if parameter.requires_grad:
                    parameter.add_(torch.randn(parameter.shape, generator=generator))
        net.train()(torch.randn(7, 6, generator=generator))
        average.after_step(net)
        if step % EVERY == 0:
            average.after_checkpoint(checkpoint(step))
    return {name: value.clone() for name, value in average.model.state_dict().items()}


def build(name):
    params = {"converge": 1, "patience": 1} if name == "swad" else {}
    params |= {"start": 0.25} if name == "swa" else {}
    return registry.find("averages", name)(**params)


@pytest.mark.parametrize("name", AVERAGES)
def test_the_average_of_a_part_is_that_of_the_whole(name):
    whole = averaged(build(name), network())
    part = averaged(PartialAverage(build(name)), network())
    assert list(whole) == list(part)
    assert all(torch.equal(whole[key], part[key]) for key in whole)


@pytest.mark.parametrize("name", AVERAGES)
def test_its_state_has_the_trained_part_alone_and_continues(name):
    expected = averaged(PartialAverage(build(name)), network())
    net, average = network(), PartialAverage(build(name))
    averaged(average, net, stop=7)
    state, weights = copy.deepcopy(average.state_dict()), copy.deepcopy(net.state_dict())
    assert (5, 6) not in [tuple(tensor.shape) for tensor in tensors(state)]
    other, again = network(), PartialAverage(build(name))
    other.load_state_dict(weights)
    again.setup(other, steps=STEPS)
    again.load_state_dict(state)
    found = averaged(again, other, start=7)
    assert all(torch.equal(expected[key], found[key]) for key in expected)
    assert again.logs() == average_logs(name)


def average_logs(name):
    average = PartialAverage(build(name))
    averaged(average, network())
    return average.logs()


def tensors(value):
    """All tensors in nested containers."""
    if isinstance(value, torch.Tensor):
        return [value]
    if not isinstance(value, dict | list | tuple):
        return []
    inside = value.values() if isinstance(value, dict) else value
    return [tensor for each in inside for tensor in tensors(each)]


def test_frozen_weights_are_shared_and_measured_statistics_stay():
    net, average = network(), PartialAverage(build("ema"))
    average.setup(net, steps=STEPS)
    assert average.model.features[0].weight is net.features[0].weight
    assert average.model.head.weight is not net.head.weight
    average.after_step(net)
    average.model.features[1].running_mean.fill_(7.0)
    average.after_checkpoint(checkpoint(2))
    assert (average.model.features[1].running_mean == 7).all()
    average.after_step(net)
    assert torch.equal(average.model.features[1].running_mean, net.features[1].running_mean)
    last = PartialAverage(build("last"))
    last.setup(net, steps=STEPS)
    assert last.model is net
