"""Networks by name: right shapes for every input, and nothing kept of other samples."""

import pytest
import torch
from torch import nn

from afield.backbone import Quadrants, network
from afield.errors import SpecError, UnknownNameError

PICTURES = [(1, 8, 8), (3, 16, 16), (1, 5, 7), (3, 64, 48), (1, 1, 1)]


def inputs(shape: tuple[int, ...], n: int = 4) -> torch.Tensor:
    return torch.randn(n, *shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        *(("small:cnn", shape) for shape in PICTURES),
        *(("small:mlp", shape) for shape in [(1,), (2,), (40,), (3, 8, 8)]),
    ],
)
def test_it_gives_one_logit_a_class_from_as_many_features_as_it_says(name, shape):
    model = network(name, shape, 7)
    x = inputs(shape)
    features = model.features(x)
    assert features.shape == (4, model.width)
    assert model(x).shape == (4, 7)
    torch.testing.assert_close(model(x), model.head(features))


@pytest.mark.parametrize(("name", "shape"), [("small:cnn", (3, 16, 16)), ("small:mlp", (5,))])
def test_logits_of_a_sample_depend_on_no_other_sample(name, shape):
    model = network(name, shape, 3).train()
    x = inputs(shape)
    others = torch.cat([x[:1], 100 * x[1:]])
    torch.testing.assert_close(model(x)[0], model(others)[0])
    assert not list(model.buffers())


@pytest.mark.parametrize(("name", "shape"), [("small:cnn", (3, 16, 16)), ("small:mlp", (5,))])
def test_it_is_initialised_from_the_generator_of_torch(name, shape):
    def weights(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return torch.cat([p.flatten() for p in network(name, shape, 3).parameters()])

    assert torch.equal(weights(0), weights(0))
    assert not torch.equal(weights(0), weights(1))


@pytest.mark.parametrize(("name", "shape"), [("small:cnn", (1, 16, 16)), ("small:mlp", (5,))])
def test_every_weight_gets_a_gradient(name, shape):
    torch.manual_seed(0)
    model = network(name, shape, 3)
    model(inputs(shape, 16)).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


def test_the_memory_layout_of_a_picture_does_not_change_its_logits():
    model = network("small:cnn", (3, 16, 16), 3)
    x = inputs((3, 16, 16))
    torch.testing.assert_close(model(x.contiguous(memory_format=torch.channels_last)), model(x))


def test_an_unknown_name_is_answered_with_a_guess():
    with pytest.raises(UnknownNameError, match="no backbone 'small:cn'; did you mean 'small:cnn'"):
        network("small:cn", (3, 8, 8), 2)


@pytest.mark.parametrize("shape", [(4,), (8, 8)])
def test_convolutions_on_arrays_are_refused_with_what_to_use_instead(shape):
    with pytest.raises(SpecError, match=r"takes pictures, .* use small:mlp"):
        network("small:cnn", shape, 2)


@pytest.mark.parametrize("size", [(1, 1), (2, 2), (8, 4), (3, 5), (8, 7)])
def test_quadrants_are_an_adaptive_pooling_to_two_by_two(size):
    x = torch.randn(3, 4, *size)
    torch.testing.assert_close(Quadrants()(x), nn.AdaptiveAvgPool2d(2)(x))
