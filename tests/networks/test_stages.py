"""Stages are found in networks of every kind, without knowing them by name."""

import pytest
import torch
from torch import nn

from afield.networks.backbone import network
from afield.networks.stages import (
    block_stages,
    channel_axis,
    channel_means,
    find_stages,
    hook_outputs,
    late_modules,
)


def stages(name, *shape):
    return list(find_stages(network(name, shape, 5), torch.zeros(1, *shape)))


def test_a_residual_network_has_the_six_stages_of_the_paper():
    names = ["act1", "layer1", "layer2", "layer3", "layer4"]
    expected = [*(f"features.{name}" for name in names), "head"]
    assert stages("timm:resnet18", 3, 32, 32) == expected
    # Torchvision's does not tell them; they are found by the sizes of its maps.
    expected[0] = "features.relu"
    assert stages("torchvision:resnet18", 3, 64, 64) == expected


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("small:mlp", (6,), ["features.2", "features.4", "head"]),
        ("small:cnn", (1, 28, 28), ["features.2", "features.5", "features.8", "head"]),
        ("small:mnist_cnn", (1, 28, 28), ["features.2", "features.11", "head"]),
    ],
)
def test_small_networks_have_a_stage_for_every_size_and_every_layer(name, shape, expected):
    assert stages(name, *shape) == expected


def test_an_activation_belongs_to_the_layer_before_it():
    result = stages("small:lenet", 1, 32, 32)
    kinds = [type(network("small:lenet", (1, 32, 32), 5).get_submodule(name)) for name in result]
    assert kinds == [nn.ReLU, nn.ReLU, nn.ReLU, nn.Dropout, nn.ReLU, nn.Linear]


@pytest.mark.parametrize(
    ("name", "blocks"),
    [("timm:vit_tiny_patch16_224", "features.blocks."), ("torchvision:vit_b_32", "encoder_layer_")],
)
@pytest.mark.slow
def test_transformers_have_a_stage_for_every_block(name, blocks):
    result = stages(name, 3, 224, 224)
    assert sum(blocks in each for each in result) == 12
    assert result[-1] == "head"


def test_an_efficient_network_has_a_stage_for_every_size():
    result = stages("timm:tf_efficientnet_lite0", 3, 64, 64)
    assert result == [*(f"features.blocks.{i}" for i in (0, 1, 2, 4, 6)), "head"]


def test_a_module_that_is_passed_twice_is_no_stage():
    relu = nn.ReLU()
    model = nn.Sequential(nn.Linear(4, 3), relu, nn.Linear(3, 2), relu)
    assert list(find_stages(model, torch.zeros(1, 4))) == ["0", "2"]


def test_looking_for_stages_leaves_modes_and_hooks_as_they_were():
    model = network("small:lenet", (1, 32, 32), 5)
    model.features.eval()
    modes = [module.training for module in model.modules()]
    find_stages(model, torch.zeros(1, 1, 32, 32))
    assert [module.training for module in model.modules()] == modes
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize(
    ("shape", "sample", "axis"),
    [
        ((2, 3, 4, 5), (2, 1, 16, 20), 1),
        ((2, 16, 16, 24), (2, 1, 32, 48), 1),
        # As within Swin transformers.
        ((2, 7, 7, 96), (2, 3, 28, 28), 3),
        ((2, 4, 6, 96), (2, 3, 32, 48), 3),
        ((2, 16, 16, 16), (2, 3, 32, 32), 1),
        ((2, 9, 3), (2, 3, 32, 32), 2),
        ((2, 9), (2, 3, 32, 32), 1),
        ((2, 9), (2, 6), 1),
    ],
)
def test_channels_are_distinguished_from_places(shape, sample, axis):
    assert channel_axis(shape, sample) == axis
    output = torch.randn(shape)
    others = [dim for dim in range(1, len(shape)) if dim != axis]
    expected = output.mean(dim=others) if others else output
    torch.testing.assert_close(channel_means(output, axis), expected)


def test_pictures_need_not_be_square():
    result = find_stages(network("small:cnn", (1, 32, 48), 5), torch.zeros(1, 1, 32, 48))
    assert set(result.values()) == {1}


def test_maps_with_channels_last_are_of_one_size_with_those_before_them():
    class ChannelsLast(nn.Module):
        def forward(self, x):
            return x.permute(0, 2, 3, 1)

    model = nn.Sequential(nn.Conv2d(3, 6, 4, stride=4), ChannelsLast(), nn.Linear(6, 6), nn.ReLU())
    assert block_stages(model, torch.zeros(2, 3, 16, 24)) == {"3": 3}


def test_a_map_of_one_position_is_no_stage_of_maps():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 2), nn.Conv2d(2, 2, 1))
    assert block_stages(model, torch.zeros(1, 1, 4, 4)) == {"1": 1}
    assert block_stages(model, torch.zeros(1, 1, 4, 5)) == {"1": 1, "3": 1}


def test_layers_before_the_first_block_are_its_stem():
    block = nn.Sequential(nn.Conv2d(4, 4, 3, stride=2), nn.ReLU())
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), block)
    assert block_stages(model, torch.zeros(1, 1, 8, 8)) == {"2": 1}


def test_what_is_watched_is_reported_while_it_is_watched():
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    outputs = {}
    x = torch.randn(5, 4)
    with hook_outputs(model, outputs.__setitem__, "0", "1"):
        model(x)
    assert list(outputs) == ["0", "1"]
    assert torch.equal(outputs["1"], model(x))
    outputs.clear()
    model(x)
    assert not outputs


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("small:mlp", (6,), ["features.3", "head"]),
        ("small:cnn", (1, 28, 28), ["features.6", "head"]),
        ("small:lenet", (1, 16, 16), ["features.10", "features.13", "head"]),
        ("timm:resnet18", (3, 64, 64), ["features.layer4", "head"]),
        ("torchvision:resnet18", (3, 64, 64), ["features.layer4", "head"]),
        ("timm:tf_efficientnet_lite0", (3, 64, 64), ["features.blocks.5", "head"]),
        ("torchvision:mobilenet_v2", (3, 64, 64), ["features.features.14", "head"]),
        ("timm:densenet121", (3, 64, 64), ["features.features.transition3", "head"]),
    ],
)
def test_what_is_late_in_a_network_begins_with_its_last_stage(name, shape, expected):
    assert late_modules(network(name, shape, 5), torch.zeros(1, *shape)) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "side", "expected"),
    [
        ("torchvision:alexnet", 64, ["features.classifier.1", "features.classifier.4", "head"]),
        ("timm:vit_tiny_patch16_224", 32, ["features.blocks.10", "features.blocks.11", "head"]),
    ],
)
def test_of_alexnet_its_layers_of_units_are_late_and_of_transformers_the_last_blocks(
    name, side, expected
):
    net = network(name, (3, side, side), 5)
    assert late_modules(net, torch.zeros(1, 3, side, side)) == expected
