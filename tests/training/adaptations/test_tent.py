"""TENT against the authors' numbers, and its limits."""

import pytest
import torch
from torch import nn

from afield.errors import SpecError
from afield.networks.backbone import Classifier
from afield.training.adaptations.batch_norm import BatchNorm
from afield.training.adaptations.tent import Tent
from tests.training.methods.references import Reference


def network(reference: Reference) -> Classifier:
    layers = [nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()]
    layers += [nn.Conv2d(4, 5, 3, stride=2, padding=1), nn.BatchNorm2d(5), nn.ReLU()]
    model = Classifier(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()), 5, 3).double()
    model.load_state_dict(reference.below("init/"))
    return model.eval()


def test_two_batches_are_those_of_the_authors_code():
    reference = Reference("tent")
    settings = reference.settings
    model = network(reference)
    predictor = Tent(lr=settings["lr"], steps=settings["steps"]).predictor(model)
    for step in (1, 2):
        out = predictor(reference[f"x/step{step}/0"])
        torch.testing.assert_close(out, reference[f"step{step}/out"], rtol=0, atol=1e-10)
        for name, value in reference.below(f"step{step}/features").items():
            result = model.state_dict()[f"features{name}"]
            torch.testing.assert_close(result, value, rtol=0, atol=1e-10)


def test_without_a_learning_rate_it_is_batch_norm():
    reference = Reference("tent")
    x = reference["x/step1/0"]
    still, plain = (
        adaptation.predictor(network(reference)) for adaptation in (Tent(lr=0.0), BatchNorm())
    )
    assert torch.equal(still(x), plain(x))


def test_several_steps_return_the_logits_before_the_last_step():
    reference = Reference("tent")
    x = reference["x/step1/0"]
    one, three = (Tent(lr=0.05, steps=s).predictor(network(reference)) for s in (1, 3))
    expected = [one(x) for _ in range(3)][-1]
    assert torch.equal(three(x), expected)


def test_reset_returns_to_the_trained_network_and_forgets_the_moments():
    reference = Reference("tent")
    x = reference["x/step1/0"]
    model = network(reference)
    predictor = Tent(lr=0.05).predictor(model)
    outputs = []
    for _ in range(2):
        predictor.reset()
        outputs += [predictor(x), predictor(x)]
    assert torch.equal(outputs[0], outputs[2])
    assert torch.equal(outputs[1], outputs[3])
    assert not torch.equal(outputs[0], outputs[1])
    predictor.reset()
    for name, value in reference.below("init/").items():
        assert torch.equal(model.state_dict()[name], value)


def test_a_single_sample_is_predicted_as_trained():
    reference = Reference("tent")
    x = reference["x/step1/0"][:1]
    expected = network(reference)(x)
    for adaptation in (Tent(lr=0.05), BatchNorm()):
        assert torch.equal(adaptation.predictor(network(reference))(x), expected)


def test_networks_without_batchnorm_are_refused():
    model = Classifier(nn.Flatten(), 2, 2)
    for adaptation in (Tent(), BatchNorm()):
        with pytest.raises(SpecError, match="adapts BatchNorm layers"):
            adaptation.check(model)
    without_scales = Classifier(nn.BatchNorm1d(2, affine=False), 2, 2)
    BatchNorm().check(without_scales)
    with pytest.raises(SpecError, match="adapts BatchNorm layers"):
        Tent().check(without_scales)
