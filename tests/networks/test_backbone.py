"""Networks by name: every family, where networks start, and what every network has."""

import urllib.request
from functools import partial

import pytest
import torch
from torch import nn

from afield import registry
from afield.errors import DataError, SpecError, UnknownNameError
from afield.networks.backbone import Backbone, Form, find_backbone, network
from tests.networks.inputs import inputs

# Importing timm takes two seconds, torchvision's networks one: whichever test is the first.
heavy = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("small:cnn1", "did you mean 'small:cnn'"),
        ("small:cn", "did you mean 'small:cnn'"),
        ("smal:lenet", "did you mean 'small:lenet'"),
        (
            "nothing",
            "known: bag:, clip:MODEL/TAG, hf:FOLDER, .*, linear, small:cnn, .*, torchvision:NAME",
        ),
        pytest.param("timm:resnet81", "did you mean 'timm:resnet18'", marks=heavy),
        pytest.param("timm:qqqqqq", "known: ", marks=heavy),
        pytest.param("torchvision:alexnett", "did you mean 'torchvision:alexnet'", marks=heavy),
    ],
)
def test_unknown_names_of_every_family_are_answered_with_a_hint(name, message):
    def input_form() -> Form | None:
        return find_backbone(name).input_form()

    for call in (input_form, partial(network, name, (3, 32, 32), 2)):
        with pytest.raises(UnknownNameError, match=f"no backbone '{name}'; {message}") as error:
            call()
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
    assert find_backbone(name).input_form() == form


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


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("small:cnn", (3, 16, 16)),
        ("small:mlp", (5,)),
        pytest.param("small:vit", (1, 16, 16), marks=heavy),
        pytest.param("timm:test_vit", (3, 32, 32), marks=heavy),
        pytest.param("torchvision:mobilenet_v3_small", (3, 32, 32), marks=heavy),
    ],
)
def test_random_weights_are_drawn_from_the_generator_of_torch(name, shape):
    def weights(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return torch.cat([p.flatten() for p in network(name, shape, 3).parameters()])

    assert torch.equal(weights(0), weights(0))
    assert not torch.equal(weights(0), weights(1))


@pytest.mark.parametrize(
    "name",
    [
        "small:cnn",
        *(
            pytest.param(name, marks=heavy)
            for name in ("small:vit", "timm:resnet18", "torchvision:alexnet")
        ),
    ],
)
@pytest.mark.parametrize("shape", [(4,), (8, 8)])
def test_arrays_are_no_pictures_and_name_an_alternative(name, shape):
    with pytest.raises(SpecError, match=f"{name} takes images, .* use small:mlp"):
        network(name, shape, 2)


@heavy
@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("timm:vit_tiny_patch16_224", (3, 8, 8), "use another --set size or network"),
        ("torchvision:alexnet", (3, 16, 16), "use another --set size or network"),
        ("torchvision:alexnet", (1, 64, 64), "takes color images, not 1 channel"),
        ("torchvision:resnet18", (1, 64, 64), "takes color images, not 1 channel"),
        ("torchvision:squeezenet1_1", (3, 64, 64), "does not end in a linear layer"),
    ],
)
def test_what_a_network_cannot_take_is_reported_when_it_is_built(name, shape, message):
    with pytest.raises(SpecError, match=f"{name}.*{message}") as error:
        network(name, shape, 2)
    assert "\n" not in str(error.value)


@heavy
@pytest.mark.parametrize(
    "name", ["timm:resnet18", "timm:resnet14t", "timm:test_vit", "torchvision:mobilenet_v3_small"]
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
@pytest.mark.parametrize("name", ["timm:resnet18", "torchvision:mobilenet_v3_small"])
def test_a_hub_that_cannot_be_reached_is_reported_with_what_to_give_instead(
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


def test_every_file_of_the_folder_is_a_family_named_after_it():
    families = registry.names("backbones")
    assert {"clip", "small", "timm", "torchvision"} <= set(families)
    for family in families:
        kind = registry.find("backbones", family)
        assert issubclass(kind, Backbone)
        assert kind.patterns
        assert all(pattern.partition(":")[0] == family for pattern in kind.patterns)


def test_a_family_needs_no_more_than_a_check_and_features(monkeypatch):
    class Own(Backbone):
        def check(self):
            if self.model != "flat":
                raise self.unknown(["own:flat"])

        def build(self, shape, *, weights, class_names):
            return nn.Flatten(), None

    monkeypatch.setattr(registry, "find", lambda kind, name: {"own": Own}[name])
    model = network("own:flat", (3, 4), 2)
    assert model.width == 12
    assert model(inputs((3, 4))).shape == (4, 2)
    backbone = find_backbone("own:flat")
    assert backbone.input_form() is None
    assert not backbone.has_pretrained_weights()
    assert (backbone.tagged_name(), backbone.package) == ("own:flat", "")
    with pytest.raises(UnknownNameError, match="did you mean 'own:flat'"):
        find_backbone("own:flap").input_form()
