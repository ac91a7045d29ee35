"""The contract of all adaptations."""

import copy
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn

from afield import registry
from afield.hyperparameters import build, extremes, ranges
from afield.networks.backbone import Classifier
from afield.networks.inference import BatchPredictor
from afield.training.adaptation import Adaptation

NAMES = registry.names("adaptations")


def network() -> Classifier:
    torch.manual_seed(0)
    layers = [nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU()]
    model = Classifier(nn.Sequential(*layers), 6, 3)
    model(torch.randn(50, 4))
    return model.eval()


def outputs(name: str, settings: Mapping[str, Any]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    predictor = build(registry.find("adaptations", name), settings).predictor(network())
    batches = [1 + 2 * torch.randn(600, 4, generator=generator) for _ in range(4)]
    with torch.no_grad():
        return torch.cat([predictor(x) for x in batches])


@pytest.mark.parametrize("name", NAMES)
def test_an_adaptation_starts_afresh_and_changes_the_predictions(name):
    adaptation: Adaptation = build(registry.find("adaptations", name), {})
    plain = network()
    predictor = adaptation.predictor(copy.deepcopy(plain))
    assert isinstance(predictor, BatchPredictor)
    x = 1 + 2 * torch.randn(64, 4)
    first = predictor(x)
    predictor(x + 1)
    predictor.reset()
    assert torch.equal(predictor(x), first)
    assert not torch.equal(first, plain(x))


def test_every_hyperparameter_matters():
    for name in NAMES:
        kind = registry.find("adaptations", name)
        for hyperparameter in ranges(kind):
            least, most = extremes(kind, hyperparameter)
            result = [outputs(name, {hyperparameter: value}) for value in (least, most)]
            assert not torch.equal(*result), f"{name}.{hyperparameter}"
