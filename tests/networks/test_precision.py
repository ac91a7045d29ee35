"""Networks in lower precision return float32, and nothing else of a run is rounded."""

import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call

from afield.errors import SpecError
from afield.networks import precision
from afield.networks.backbone import Classifier, network
from afield.networks.precision import check_precision, lower_precision, resolve_precision


def resolved(precision: str, backbone: str, size: int) -> str:
    return resolve_precision({"precision": precision, "backbone": backbone, "size": size})


def classifier() -> Classifier:
    torch.manual_seed(0)
    features = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten())
    return Classifier(features, 8 * 16, 3)


@pytest.fixture
def x():
    return torch.randn(5, 1, 6, 6)


@pytest.fixture
def pair():
    """A network, and the same one in bfloat16."""
    full, lower = classifier(), classifier()
    lower_precision(lower, "bf16")
    return full, lower


def test_whatever_is_called_from_outside_is_rounded_inside_and_returns_float32(pair, x):
    full, lower = pair
    inside = []
    lower.features[0].register_forward_hook(lambda _m, _i, output: inside.append(output.dtype))
    for part in (lambda net: net(x), lambda net: net.features(x), lambda net: net.features[0](x)):
        expected, result = part(full), part(lower)
        assert result.dtype == torch.float32
        assert not torch.equal(result, expected)
        torch.testing.assert_close(result, expected, atol=0.05, rtol=0.05)
    assert inside == [torch.bfloat16] * 2 + [torch.float32]
    assert not torch.is_autocast_enabled("cpu")


def test_weights_and_their_gradients_stay_in_float32(pair, x):
    full, lower = pair
    assert lower.state_dict().keys() == full.state_dict().keys()
    for net in pair:
        net(x).square().mean().backward()
    for theirs, ours in zip(full.parameters(), lower.parameters(), strict=True):
        assert ours.dtype == ours.grad.dtype == torch.float32
        torch.testing.assert_close(ours.grad, theirs.grad, atol=0.05, rtol=0.1)


def test_a_pass_without_gradients_does_not_take_them_from_the_next(pair, x):
    _, lower = pair
    with torch.no_grad():
        lower(x)
    lower(x).sum().backward()
    assert all(parameter.grad is not None for parameter in lower.parameters())


def test_copies_and_other_weights_are_rounded_too(pair, x):
    full, lower = pair
    expected = lower.eval()(x)
    assert torch.equal(copy.deepcopy(lower)(x), expected)
    assert torch.equal(functional_call(lower, dict(full.named_parameters()), (x,)), expected)


def test_second_derivatives_pass(pair, x):
    results = []
    for net in pair:
        weights = list(net.parameters())
        loss = net(x).square().mean()
        first = torch.autograd.grad(loss, weights, create_graph=True)
        norm = sum(gradient.square().sum() for gradient in first)
        results.append(torch.autograd.grad(norm, weights)[0])
    assert results[1].dtype == torch.float32
    assert torch.nn.functional.cosine_similarity(*(r.flatten() for r in results), dim=0) > 0.99


def test_an_error_within_the_network_leaves_the_precision_of_others(pair):
    with pytest.raises(RuntimeError):
        pair[1](torch.randn(5, 2, 6, 6))
    assert not torch.is_autocast_enabled("cpu")
    assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
    pair[1](torch.randn(5, 1, 6, 6))
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("name", ["small:vit", "small:lenet", "small:mlp"])
def test_other_networks_compute_in_bfloat16(name):
    shape = (64,) if name == "small:mlp" else (1, 32, 32)
    net = network(name, shape, 3).eval()
    x = torch.randn(4, *shape)
    expected = net(x)
    lower_precision(net, "bf16")
    assert net(x).dtype == torch.float32
    torch.testing.assert_close(net(x), expected, atol=0.1, rtol=0.1)


def test_a_precision_that_is_given_holds_on_every_machine():
    assert resolved("fp32", "small:cnn", 0) == ""
    assert resolved("bf16", "timm:tf_efficientnet_lite0", 224) == "bf16"


def test_auto_depends_on_the_processor_and_on_depthwise_layers(monkeypatch):
    monkeypatch.setattr(precision, "default_device", lambda: "cpu")
    chosen = {}
    for flags in (True, False):
        monkeypatch.setattr(precision, "_cpu_has_bf16", lambda flags=flags: flags)
        names = ("small:mnist_cnn", "small:cnn", "timm:resnet18", "timm:tf_efficientnet_lite0")
        chosen[flags] = [resolved("auto", name, 64) for name in names]
    assert chosen == {True: ["bf16", "", "bf16", ""], False: ["", "", "", ""]}


def test_auto_on_a_gpu_depends_on_the_gpu(monkeypatch):
    monkeypatch.setattr(precision, "default_device", lambda: "cuda")
    for has, expected in ((True, "bf16"), (False, "fp16")):
        monkeypatch.setattr(precision, "_gpu_has_bf16", lambda has=has: has)
        assert resolved("auto", "small:cnn", 0) == expected


def test_what_a_device_cannot_do_is_refused(monkeypatch):
    with pytest.raises(SpecError, match="precision=fp16: only for GPUs; use precision=bf16"):
        check_precision("fp16", torch.device("cpu"))
    monkeypatch.setattr(precision, "_gpu_has_bf16", lambda: False)
    with pytest.raises(SpecError, match="use precision=fp16"):
        check_precision("bf16", torch.device("cuda"))
    check_precision("bf16", torch.device("cpu"))
    check_precision("", torch.device("cpu"))
