"""timm's networks start from files and from published weights."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from afield.data.domains import data_root
from afield.networks.backbone import Form, find_backbone, network
from tests.networks.inputs import inputs, statistics

# Importing timm takes two seconds, torchvision's networks one: whichever test is the first.
heavy = pytest.mark.slow


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
    size = find_backbone("timm:test_vit").input_form().size
    same, smaller = (
        network("timm:test_vit", (3, side, side), 4, weights=str(tmp_path / "w.pth")).features
        for side in (size, size // 2)
    )
    assert torch.equal(same.pos_embed, net.pos_embed)
    assert smaller.pos_embed.shape[1] < net.pos_embed.shape[1]
    assert torch.equal(smaller.blocks[0].mlp.fc1.weight, net.blocks[0].mlp.fc1.weight)


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
    assert find_backbone("timm:tf_efficientnet_lite0").input_form() == Form(
        224, (0.5,) * 3, (0.5,) * 3
    )
