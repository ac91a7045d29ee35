"""Small networks: right shapes for every input, and nothing kept of other samples."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torchvision.models import get_model

from afield.errors import SpecError
from afield.networks.backbone import find_backbone, network
from afield.networks.backbones.small import Quadrants, Small
from tests.networks.inputs import inputs

# Importing timm takes two seconds: whichever test is the first.
heavy = pytest.mark.slow
PICTURES = [(1, 8, 8), (3, 16, 16), (1, 5, 7), (3, 64, 48), (1, 1, 1)]


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        *(("small:cnn", shape) for shape in PICTURES),
        *(("small:mlp", shape) for shape in [(1,), (2,), (40,), (3, 8, 8)]),
        ("small:table", (5,)),
        *(("small:audio", shape) for shape in [(1, 40, 78), (1, 8, 3)]),
        *(("small:lenet", shape) for shape in [(1, 32, 32), (3, 8, 8), (2, 17, 40)]),
        *(("small:mnist_cnn", shape) for shape in [(1, 28, 28), (2, 14, 14), (3, 5, 7)]),
        *(("small:ccsa", shape) for shape in [(1, 28, 28), (3, 6, 7)]),
        *(("small:keyword_cnn", shape) for shape in [(1, 40, 98), (1, 9, 7)]),
        *((f"small:{name}", (3, 32, 32)) for name in ("resnet_2block", "resnet18", "resnet34")),
        *(pytest.param("small:vit", shape, marks=heavy) for shape in [(1, 16, 16), (3, 24, 36)]),
    ],
)
def test_it_gives_one_logit_a_class_from_as_many_features_as_it_says(name, shape):
    model = network(name, shape, 7).eval()
    x = inputs(shape)
    features = model.features(x)
    assert features.shape == (4, model.width)
    assert model(x).shape == (4, 7)
    torch.testing.assert_close(model(x), model.head(features))


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("small:cnn", (3, 16, 16)),
        ("small:mlp", (5,)),
        ("small:mnist_cnn", (1, 8, 8)),
        pytest.param("small:vit", (1, 16, 16), marks=heavy),
    ],
)
def test_logits_of_a_sample_depend_on_no_other_sample(name, shape):
    model = network(name, shape, 3).train()
    x = inputs(shape)
    others = torch.cat([x[:1], 100 * x[1:]])
    torch.testing.assert_close(model(x)[0], model(others)[0])
    assert not list(model.buffers())


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("small:cnn", (1, 16, 16)),
        ("small:mlp", (5,)),
        ("small:lenet", (1, 16, 16)),
        ("small:mnist_cnn", (1, 8, 8)),
        ("small:ccsa", (1, 16, 16)),
        ("small:keyword_cnn", (1, 8, 20)),
        ("small:resnet_2block", (1, 8, 8)),
        ("small:resnet18", (1, 16, 16)),
        pytest.param("small:vit", (1, 16, 16), marks=heavy),
    ],
)
def test_every_weight_gets_a_gradient(name, shape):
    torch.manual_seed(0)
    model = network(name, shape, 3)
    model(inputs(shape, 16)).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


@pytest.mark.parametrize("name", ["small:cnn", pytest.param("small:vit", marks=heavy)])
def test_the_memory_layout_of_a_picture_does_not_change_its_logits(name):
    model = network(name, (3, 16, 16), 3)
    x = inputs((3, 16, 16))
    torch.testing.assert_close(model(x.contiguous(memory_format=torch.channels_last)), model(x))


@pytest.mark.parametrize("size", [(1, 1), (2, 2), (8, 4), (3, 5), (8, 7)])
def test_quadrants_are_an_adaptive_pooling_to_two_by_two(size):
    x = torch.randn(3, 4, *size)
    torch.testing.assert_close(Quadrants()(x), nn.AdaptiveAvgPool2d(2)(x))


def test_lenet_is_crossgrads_network_layer_for_layer():
    model = network("small:lenet", (1, 32, 32), 5).train()
    tensors = list(model.parameters())
    shapes = [(32, 1, 5, 5), (64, 32, 5, 5), (128, 64, 5, 5), (128, 2048), (64, 128), (5, 64)]
    assert [tuple(tensor.shape) for tensor in tensors[::2]] == shapes
    weights = list(zip(tensors[::2], tensors[1::2], strict=True))
    x = inputs((1, 32, 32))
    hidden = x
    for weight, bias in weights[:3]:
        hidden = F.max_pool2d(F.conv2d(hidden, weight, bias, padding=2).relu(), 2)
    torch.manual_seed(0)
    hidden = F.dropout(F.linear(hidden.flatten(1), *weights[3]).relu(), 0.5)
    expected = F.linear(F.linear(hidden, *weights[4]).relu(), *weights[5])
    torch.manual_seed(0)
    torch.testing.assert_close(model(x), expected)


def test_mnist_cnn_is_domainbeds_network_layer_for_layer():
    model = network("small:mnist_cnn", (2, 14, 14), 10)
    tensors = list(model.parameters())
    x = inputs((2, 14, 14))
    hidden, before = x, 2
    for i, (after, stride) in enumerate([(64, 1), (128, 2), (128, 1), (128, 1)]):
        kernel, bias, scale, shift = tensors[4 * i : 4 * i + 4]
        assert kernel.shape == (after, before, 3, 3)
        nn.init.uniform_(scale)
        nn.init.uniform_(shift)
        hidden = F.conv2d(hidden, kernel, bias, stride=stride, padding=1).relu()
        hidden, before = F.group_norm(hidden, 8, scale, shift), after
    expected = F.linear(hidden.mean(dim=(2, 3)), *tensors[16:])
    assert tensors[16].shape == (10, 128)
    torch.testing.assert_close(model(x), expected)


def test_ccsa_is_motiians_network_layer_for_layer():
    model = network("small:ccsa", (1, 16, 16), 10).train()
    tensors = list(model.parameters())
    shapes = [(32, 1, 3, 3), (32, 32, 3, 3), (120, 1152), (84, 120), (10, 84)]
    assert [tuple(tensor.shape) for tensor in tensors[::2]] == shapes
    weights = list(zip(tensors[::2], tensors[1::2], strict=True))
    hidden = x = inputs((1, 16, 16))
    for weight, bias in weights[:2]:
        hidden = F.conv2d(hidden, weight, bias).relu()
    torch.manual_seed(0)
    hidden = F.dropout(F.max_pool2d(hidden, 2), 0.25).flatten(1)
    for weight, bias in weights[2:4]:
        hidden = F.linear(hidden, weight, bias).relu()
    torch.manual_seed(0)
    torch.testing.assert_close(model(x), F.linear(hidden, *weights[4]))


@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_keyword_cnn_is_the_tutorials_network_on_frequencies_by_frames():
    model = network("small:keyword_cnn", (1, 40, 99), 12).eval()
    first, first_bias, second, second_bias, *head = model.parameters()
    assert first.shape == (64, 1, 8, 20)
    assert second.shape == (64, 64, 4, 10)
    assert head[0].shape == (12, 64 * 20 * 50)
    x = inputs((1, 40, 99), 2)
    hidden = F.conv2d(x, first, first_bias, padding="same").relu()
    hidden = F.max_pool2d(hidden, 2, ceil_mode=True)
    hidden = F.conv2d(hidden, second, second_bias, padding="same").relu()
    torch.testing.assert_close(model(x), F.linear(hidden.flatten(1), *head))


def test_resnets_see_small_images_at_full_size_and_differ_from_torchvisions_in_the_stem_only():
    stages = {}
    for name in ("small:resnet18", "small:resnet34"):
        net = network(name, (1, 32, 32), 5).features
        assert net.conv1.weight.shape == (64, 1, 3, 3)
        net.layer1.register_forward_pre_hook(lambda _, x: stages.update(first=x[0].shape))
        net.layer4.register_forward_hook(lambda _, __, y: stages.update(last=y.shape))
        net(inputs((1, 32, 32), 1))
        assert stages == {"first": (1, 64, 32, 32), "last": (1, 512, 4, 4)}
        theirs = get_model(name.removeprefix("small:")).state_dict()
        assert set(theirs) - set(net.state_dict()) == {"fc.weight", "fc.bias"}
        assert find_backbone(name).package == "torchvision"


def test_the_two_block_resnet_adds_each_blocks_input_to_its_output():
    net = network("small:resnet_2block", (1, 8, 8), 5).features.eval()
    x = inputs((1, 8, 8))
    hidden = net[2](net[1](net[0](x)))
    for block, shortcut in ((net[3], nn.Identity()), (net[4], net[4].downsample)):
        inner = block.bn2(block.conv2(block.bn1(block.conv1(hidden)).relu()))
        hidden = (inner + shortcut(hidden)).relu()
    assert hidden.shape == (4, 128, 4, 4)
    torch.testing.assert_close(net(x), hidden.mean(dim=(2, 3)))


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("small:ccsa", (1, 5, 28), "small:ccsa needs images of 6 pixels or more"),
        ("small:lenet", (1, 8, 7), r"halves an image three times; \(8, 7\) is too small"),
    ],
)
def test_pictures_that_are_too_small_are_refused(name, shape, message):
    with pytest.raises(SpecError, match=message):
        network(name, shape, 2)


@pytest.mark.parametrize("name", Small.patterns)
def test_small_networks_have_no_form_and_no_weights_to_start_from(name):
    assert find_backbone(name).input_form() is None
    with pytest.raises(SpecError, match=f"{name} starts from random weights; omit --weights hub"):
        network(name, (1, 16, 16), 2, weights="hub")


@heavy
@pytest.mark.parametrize(
    ("size", "side", "count"),
    [
        ((8, 8), 2, 16),
        ((14, 14), 2, 49),
        ((16, 16), 4, 16),
        ((28, 28), 7, 16),
        ((32, 32), 8, 16),
        ((64, 64), 16, 16),
        ((24, 36), 6, 24),
    ],
)
def test_a_transformer_sees_sixteen_patches_or_as_few_more_as_can_be(size, side, count):
    net = network("small:vit", (3, *size), 5).features
    assert net.patch_embed.proj.weight.shape == (64, 3, side, side)
    assert net.pos_embed.shape == (1, count, 64)


@heavy
@pytest.mark.parametrize("size", [(23, 23), (22, 22), (3, 3), (16, 23)])
def test_pictures_that_cannot_be_cut_into_patches_are_refused_with_sizes_that_can(size):
    with pytest.raises(SpecError, match=r"16 to 64 equal squares, which is impossible") as error:
        network("small:vit", (1, *size), 2)
    assert str(size) in str(error.value)
    assert "--set size, such as 16, 28, 32 or 64" in str(error.value)


@heavy
def test_the_linear_layers_of_a_transformer_are_matrices_and_its_features_a_mean_over_patches():
    torch.manual_seed(0)
    net = network("small:vit", (1, 16, 16), 5).features
    matrices = [tuple(weight.shape) for weight in net.parameters() if weight.ndim == 2]
    assert matrices == 4 * [(192, 64), (64, 64), (128, 64), (64, 128)]
    x = inputs((1, 16, 16))
    tokens = net.forward_features(x)
    assert tokens.shape == (4, 16, 64)
    torch.testing.assert_close(net(x), F.layer_norm(tokens.mean(dim=1), (64,), eps=1e-6))
    # Nothing is dropped, so training and evaluation see the same.
    torch.testing.assert_close(net.train()(x), net.eval()(x))


@heavy
def test_a_transformer_learns_in_few_steps_where_something_is():
    torch.manual_seed(0)
    model = network("small:vit", (1, 16, 16), 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def drawn(n: int) -> tuple[torch.Tensor, torch.Tensor]:
        corner = torch.randint(4, (n,))
        bright = F.one_hot(corner, 4).view(n, 1, 2, 2).float()
        return torch.randn(n, 1, 16, 16) + 2 * F.interpolate(bright, scale_factor=8.0), corner

    for _ in range(40):
        x, y = drawn(32)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    x, y = drawn(200)
    assert (model(x).argmax(dim=1) == y).float().mean() > 0.9
