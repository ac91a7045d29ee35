"""Networks by name: those of libraries, where they start, and what every network has."""

import copy
import urllib.request
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

from afield.data.domains import data_root
from afield.errors import DataError, SpecError, UnknownNameError
from afield.networks.backbone import (
    Classifier,
    Form,
    has_unfrozen_batchnorm,
    input_form,
    network,
    update_batchnorm,
)

# Importing timm takes two seconds, torchvision's networks one: whichever test is the first.
heavy = pytest.mark.slow


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Of networks and batches as small as these a second thread waits more than it works."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def inputs(shape: tuple[int, ...], n: int = 4) -> torch.Tensor:
    return torch.randn(n, *shape, generator=torch.Generator().manual_seed(0))


def test_an_unknown_name_is_answered_with_a_guess():
    with pytest.raises(UnknownNameError, match="no backbone 'small:cn'; did you mean 'small:cnn'"):
        network("small:cn", (3, 8, 8), 2)


def normed() -> nn.Sequential:
    """A small network with both kinds of BatchNorm."""
    torch.manual_seed(0)
    picture = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    return nn.Sequential(picture, nn.Linear(4 * 36, 6), nn.BatchNorm1d(6))


def statistics(model: nn.Module) -> list[torch.Tensor]:
    return [buffer.clone() for name, buffer in model.named_buffers() if "running" in name]


@pytest.mark.parametrize("freeze_bn", [True, False])
def test_statistics_of_batchnorm_move_unless_they_are_frozen(freeze_bn):
    model = Classifier(normed(), 6, 3, freeze_bn=freeze_bn)
    before = statistics(model)
    assert len(before) == 4
    for _ in range(3):
        # Nested, as in a method with several networks.
        nn.ModuleDict({"one": model}).train()
        model(5 + 3 * inputs((3, 8, 8)))
    moved = [not torch.equal(*pair) for pair in zip(before, statistics(model), strict=True)]
    assert moved == [not freeze_bn] * 4
    assert model.features[0][0].training
    assert model.features[0][1].training is not freeze_bn


def test_frozen_statistics_are_used_in_training_and_their_weights_still_train():
    model = Classifier(normed(), 6, 3, freeze_bn=True)
    x = 5 + 3 * inputs((3, 8, 8))
    torch.testing.assert_close(model.train()(x), copy.deepcopy(model).eval()(x))
    model(x).square().sum().backward()
    for norm in (model.features[0][1], model.features[2]):
        assert all(part.grad.abs().sum() > 0 for part in (norm.weight, norm.bias))


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("small:cnn1", "did you mean 'small:cnn'"),
        ("smal:lenet", "did you mean 'small:lenet'"),
        ("nothing", "known: small:cnn, .*, timm:NAME, torchvision:NAME, clip:MODEL/TAG"),
        pytest.param("timm:resnet81", "did you mean 'timm:resnet18'", marks=heavy),
        pytest.param("timm:qqqqqq", "known: ", marks=heavy),
        pytest.param("torchvision:alexnett", "did you mean 'torchvision:alexnet'", marks=heavy),
    ],
)
def test_unknown_names_of_every_family_are_answered_with_a_hint(name, told):
    for asked in (input_form, lambda name: network(name, (3, 32, 32), 2)):
        with pytest.raises(UnknownNameError, match=f"no backbone '{name}'; {told}") as error:
            asked(name)
        assert len(str(error.value)) < 400


@heavy
@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("timm:resnet18", Form(224, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))),
        ("timm:vit_tiny_patch16_224", Form(224, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))),
        ("timm:inception_v3", Form(299, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))),
        ("torchvision:alexnet", Form(224, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))),
    ],
)
def test_a_form_is_that_of_the_pictures_a_network_was_made_for(name, form):
    assert input_form(name) == form


@heavy
@pytest.mark.parametrize(
    ("name", "shape", "width"),
    [
        ("timm:resnet18", (3, 32, 32), 512),
        ("timm:resnet18", (1, 24, 40), 512),
        ("timm:vit_tiny_patch16_224", (3, 32, 32), 192),
        ("timm:vit_tiny_patch16_224", (1, 48, 32), 192),
        # Takes the size of pictures as one number.
        ("timm:efficientvit_m0", (3, 64, 64), 192),
        # Has a hidden layer between its 288 maps and its head.
        ("timm:mobilenetv3_small_050", (3, 32, 32), 1024),
        ("torchvision:alexnet", (3, 64, 64), 4096),
        ("torchvision:mobilenet_v3_small", (3, 32, 32), 1024),
    ],
)
def test_networks_of_libraries_give_features_of_the_width_they_say(name, shape, width):
    model = network(name, shape, 7)
    assert model.width == width
    assert all(module.training for module in model.modules())
    x = inputs(shape)
    model.eval()
    features = model.features(x)
    assert features.shape == (4, width)
    torch.testing.assert_close(model(x), model.head(features))


@heavy
def test_networks_with_further_outputs_in_training_give_features_alone():
    with pytest.warns(FutureWarning, match="weight initialization"):
        model = network("torchvision:googlenet", (3, 64, 64), 3)
    assert model.train()(inputs((3, 64, 64))).shape == (4, 3)


@heavy
@pytest.mark.parametrize("name", ["timm:test_vit", "torchvision:mobilenet_v3_small"])
def test_weights_of_a_library_are_drawn_from_the_generator_of_torch(name):
    def weights(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return torch.cat([p.flatten() for p in network(name, (3, 32, 32), 3).parameters()])

    assert torch.equal(weights(0), weights(0))
    assert not torch.equal(weights(0), weights(1))


@heavy
@pytest.mark.parametrize("name", ["timm:resnet18", "torchvision:alexnet"])
@pytest.mark.parametrize("shape", [(4,), (8, 8)])
def test_arrays_are_no_pictures_for_networks_of_libraries(name, shape):
    with pytest.raises(SpecError, match=f"{name} takes pictures, .* use small:mlp"):
        network(name, shape, 2)


@heavy
@pytest.mark.parametrize(
    ("name", "shape", "told"),
    [
        ("timm:vit_tiny_patch16_224", (3, 8, 8), "use another --set size or network"),
        ("torchvision:alexnet", (3, 16, 16), "use another --set size or network"),
        ("torchvision:alexnet", (1, 64, 64), "takes pictures in colour, not 1 channel"),
        ("torchvision:squeezenet1_1", (3, 64, 64), "does not end in a linear layer"),
    ],
)
def test_what_a_network_cannot_take_is_told_when_it_is_built(name, shape, told):
    with pytest.raises(SpecError, match=f"{name}.*{told}") as error:
        network(name, shape, 2)
    assert "\n" not in str(error.value)


@pytest.fixture(scope="module")
def little_resnet() -> nn.Module:
    """The smallest of timm's ResNets, with weights and statistics unlike fresh ones."""
    import timm

    torch.manual_seed(1)
    net = timm.create_model("resnet10t", num_classes=10)
    net.train()(3 * inputs((3, 32, 32)))
    return net.eval()


@heavy
@pytest.mark.parametrize("form", ["safetensors", "pth", "wrapped", "without head"])
def test_weights_of_a_file_are_where_features_start(tmp_path, form, little_resnet):
    net = little_resnet
    state, file = net.state_dict(), tmp_path / "w.pth"
    if form == "safetensors":
        file = tmp_path / "w.safetensors"
        save_file(state, file)
    elif form == "wrapped":
        torch.save({"state_dict": state, "epoch": 3}, file)
    else:
        left_out = "fc." if form == "without head" else "-"
        torch.save({k: v for k, v in state.items() if not k.startswith(left_out)}, file)
    x = inputs((3, 32, 32))
    expected = net.forward_head(net.forward_features(x), pre_logits=True)
    model = network("timm:resnet10t", (3, 32, 32), 4, weights=str(file)).eval()
    torch.testing.assert_close(model.features(x), expected)
    assert model.head.weight.shape == (4, 512)
    # A picture without colours is seen as one whose colours are equal.
    grey = network("timm:resnet10t", (1, 32, 32), 4, weights=str(file)).eval()
    expected = model.features(x[:, :1].expand(-1, 3, -1, -1))
    torch.testing.assert_close(grey.features(x[:, :1]), expected, rtol=1e-4, atol=1e-4)


@heavy
def test_the_head_is_fresh_even_for_as_many_classes_as_the_file_has(tmp_path, little_resnet):
    torch.save(little_resnet.state_dict(), tmp_path / "w.pth")

    def head(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        weights = str(tmp_path / "w.pth")
        return network("timm:resnet10t", (3, 32, 32), 10, weights=weights).head.weight

    first = head(0)
    assert torch.equal(head(0), first)
    assert not torch.equal(head(1), first)
    assert not torch.equal(little_resnet.fc.weight, first)


@heavy
def test_weights_of_one_size_of_pictures_start_a_network_of_another(tmp_path):
    import timm

    torch.manual_seed(0)
    net = timm.create_model("test_vit", num_classes=0)
    torch.save(net.state_dict(), tmp_path / "w.pth")
    size = input_form("timm:test_vit").size
    same, smaller = (
        network("timm:test_vit", (3, side, side), 4, weights=str(tmp_path / "w.pth")).features
        for side in (size, size // 2)
    )
    assert torch.equal(same.pos_embed, net.pos_embed)
    assert smaller.pos_embed.shape[1] < net.pos_embed.shape[1]
    assert torch.equal(smaller.blocks[0].mlp.fc1.weight, net.blocks[0].mlp.fc1.weight)


@heavy
def test_weights_of_torchvision_start_features_with_or_without_counts_of_batches(tmp_path):
    from torchvision.models import get_model

    torch.manual_seed(1)
    net = get_model("mobilenet_v3_small", num_classes=9)
    net.train()(3 * inputs((3, 32, 32)))
    net.eval()
    x = inputs((3, 32, 32))
    net.classifier[3] = nn.Identity()
    expected = net(x)
    for left_out in ("-", "num_batches_tracked"):
        file = tmp_path / f"{left_out}.pth"
        torch.save({k: v for k, v in net.state_dict().items() if left_out not in k}, file)
        model = network("torchvision:mobilenet_v3_small", (3, 32, 32), 4, weights=str(file)).eval()
        torch.testing.assert_close(model.features(x), expected)


@heavy
@pytest.mark.parametrize(
    "name",
    ["timm:resnet18", "timm:resnet14t", "timm:test_vit", "torchvision:mobilenet_v3_small"],
)
def test_a_file_of_another_architecture_is_refused_in_one_line(tmp_path, name, little_resnet):
    file = tmp_path / "w.pth"
    torch.save(little_resnet.state_dict(), file)
    with pytest.raises(DataError, match="same architecture") as error:
        network(name, (3, 32, 32), 4, weights=str(file))
    assert str(error.value).startswith(str(file))
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500


@heavy
def test_frozen_statistics_of_a_file_stay_and_unfrozen_ones_move(tmp_path):
    import timm

    # Its layers are BatchNorm and activation in one.
    net = timm.create_model("mobilenetv3_small_050", num_classes=0)
    net.train()(3 * inputs((3, 32, 32)))
    torch.save(net.state_dict(), tmp_path / "w.pth")
    for freeze_bn in (True, False):
        model = network(
            "timm:mobilenetv3_small_050",
            (3, 32, 32),
            4,
            weights=str(tmp_path / "w.pth"),
            freeze_bn=freeze_bn,
        )
        model.train()(inputs((3, 32, 32)))
        pairs = zip(statistics(net), statistics(model), strict=True)
        assert all(torch.equal(*pair) for pair in pairs) is freeze_bn


@heavy
@pytest.mark.parametrize("name", ["timm:resnet18", "torchvision:mobilenet_v3_small"])
def test_a_hub_that_cannot_be_reached_is_told_with_what_to_give_instead(
    name, tmp_path, monkeypatch
):
    import huggingface_hub.constants

    # Nobody answers at this port, and nothing that was fetched before is found.
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    monkeypatch.setattr(urllib.request, "_opener", None)
    with pytest.raises(DataError, match=f"{name}: its weights could not be fetched") as error:
        network(name, (3, 64, 64), 2, weights="hub")
    assert "give --weights FILE, or --weights none" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.data
@heavy
def test_the_published_weights_give_the_features_of_the_published_network():
    import timm

    file = data_root() / "weights" / "tf_efficientnet_lite0.safetensors"
    if not file.is_file():
        pytest.skip(f"no {file}; AFIELD_DATA names the folder with weights")
    net = timm.create_model("tf_efficientnet_lite0").eval()
    net.load_state_dict(load_file(file))
    x = inputs((3, 96, 96), 2)
    model = network("timm:tf_efficientnet_lite0", (3, 96, 96), 4, weights=str(file), freeze_bn=True)
    with torch.no_grad():
        expected = net.forward_head(net.forward_features(x), pre_logits=True)
        torch.testing.assert_close(model.eval().features(x), expected)
        assert expected.std() > 0.01
    assert input_form("timm:tf_efficientnet_lite0") == Form(224, (0.5,) * 3, (0.5,) * 3)


def norms(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if isinstance(module, nn.BatchNorm1d)]


def deep() -> Classifier:
    """Two BatchNorm layers, the second after the first, and dropout before and between."""
    torch.manual_seed(0)
    first = nn.Dropout(0.5), nn.Linear(5, 4), nn.BatchNorm1d(4, momentum=0.2), nn.ReLU()
    second = nn.Dropout(0.5), nn.Linear(4, 3), nn.BatchNorm1d(3, momentum=None)
    return Classifier(nn.Sequential(*first, *second), 3, 2)


def test_renewed_statistics_are_the_means_over_the_batches_each_alike():
    model = deep()
    # Of unequal size, and each far from the others: weights by size would be seen.
    batches = [i + (i + 1) * inputs((5,), n) for i, n in enumerate((4, 30, 11))]
    for x in batches:
        model.train()(100 * x)
    update_batchnorm(model, iter(batches))
    linear, norm, other, last = (model.features[i] for i in (1, 2, 5, 6))
    first = [linear(x) for x in batches]
    # In depth as in training: normalised by the batch, but nothing dropped.
    second = [
        other(F.batch_norm(x, None, None, norm.weight, norm.bias, True).relu()) for x in first
    ]
    for layer, hidden in ((norm, first), (last, second)):
        mean = torch.stack([x.mean(dim=0) for x in hidden]).mean(dim=0)
        var = torch.stack([x.var(dim=0) for x in hidden]).mean(dim=0)
        torch.testing.assert_close(layer.running_mean, mean)
        torch.testing.assert_close(layer.running_var, var)
        assert layer.num_batches_tracked == 3


@pytest.mark.parametrize("training", [True, False])
def test_renewing_statistics_changes_nothing_else(training):
    model = deep().train(training)
    state, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    update_batchnorm(model, [inputs((5,), 9)] * 2)
    for name, value in model.state_dict().items():
        buffer = name.endswith(("running_mean", "running_var", "num_batches_tracked"))
        assert torch.equal(value, state[name]) != buffer
    assert torch.equal(torch.get_rng_state(), random)
    assert [norm.momentum for norm in norms(model)] == [0.2, None]
    assert {module.training for module in model.modules()} == {training}
    assert all(parameter.grad is None for parameter in model.parameters())


def test_renewing_a_second_time_forgets_the_first():
    model = deep()
    update_batchnorm(model, [100 + inputs((5,), 9)] * 3)
    update_batchnorm(model, [inputs((5,), 9)])
    expected = deep()
    update_batchnorm(expected, [inputs((5,), 9)])
    pairs = zip(statistics(model), statistics(expected), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)


def test_frozen_statistics_are_not_renewed():
    model = Classifier(normed(), 6, 3, freeze_bn=True)
    before = statistics(model)
    update_batchnorm(model, [5 + 3 * inputs((3, 8, 8))])
    assert all(torch.equal(*pair) for pair in zip(before, statistics(model), strict=True))
    assert not any(norm.training for norm in norms(model))
    assert model.features[0][0].training


@pytest.mark.parametrize(
    ("build", "free"),
    [
        (lambda: Classifier(normed(), 6, 3), True),
        (lambda: Classifier(normed(), 6, 3, freeze_bn=True), False),
        (lambda: nn.Sequential(nn.BatchNorm1d(2, track_running_stats=False)), False),
        (lambda: nn.Sequential(nn.LayerNorm(2)), False),
        (lambda: network("small:cnn", (3, 16, 16), 2), False),
    ],
)
@pytest.mark.parametrize("training", [True, False])
def test_statistics_are_free_where_they_would_follow_the_data_in_training(build, free, training):
    model = build().train(training)
    before = [module.training for module in model.modules()]
    assert has_unfrozen_batchnorm(model) is free
    assert [module.training for module in model.modules()] == before
