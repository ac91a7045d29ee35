"""What of a network is trained, and at which rate."""

import pytest
from torch import nn

from afield.errors import SpecError
from afield.networks.backbone import Classifier, network
from afield.networks.lora import adapted_layers
from afield.networks.tuning import Lora, layer_rates, tune_network

IMAGE = (3, 32, 32)
VIT_LAYERS = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("lora", "lora:rank=4,alpha=8"),
        ("lora: alpha=1.50, rank=2", "lora:rank=2,alpha=1.5"),
        ("lora:layers=qkv+fc1+qkv", "lora:rank=4,alpha=8,layers=fc1+qkv"),
    ],
)
def test_a_lora_has_one_spelling(text, canonical):
    assert str(Lora.of(text)) == canonical
    assert str(Lora.of(canonical)) == canonical


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lora:rank=0", "rank is a whole number from 1"),
        ("lora:rank=-3", "rank is a whole number from 1"),
        ("lora:rank=2.5", "rank is a whole number from 1"),
        ("lora:rank=1e9", "rank is a whole number from 1 to 4096"),
        ("lora:rank=many", "rank=many is not a number"),
        ("lora:rank=nan", "rank=nan is not a number"),
        ("lora:alpha=0", "alpha is above 0"),
        ("lora:alpha=inf", "alpha=inf is not a number"),
        ("lora:dropout=0.1", "write lora:rank=4,alpha=8"),
        ("lora:4", "write lora:rank=4,alpha=8"),
        ("lora:layers=a b", "'a b' is not the name of a layer"),
    ],
)
def test_a_lora_that_makes_no_sense_is_refused_in_one_line(text, message):
    with pytest.raises(SpecError, match=message) as caught:
        Lora.of(text)
    assert str(caught.value).startswith(f"tune={text}: ")
    assert "\n" not in str(caught.value)


def layer_names(name, tune, shape=IMAGE):
    net = network(name, shape, 4)
    tune_network(net, tune, name, shape[0])
    return [layer.removeprefix("features.") for layer, _ in adapted_layers(net)]


def trained(name, tune, shape=IMAGE):
    net = network(name, shape, 4)
    tune_network(net, tune, name, shape[0])
    return [n for n, p in net.named_parameters() if p.requires_grad]


def test_lora_changes_the_projections_of_a_transformer():
    expected = [f"blocks.{i}.{layer}" for i in range(4) for layer in VIT_LAYERS]
    assert layer_names("small:vit", "lora") == expected
    chosen = layer_names("small:vit", "lora:layers=fc1+attention")
    assert chosen == [name for name in expected if not name.endswith("fc2")]


def test_lora_changes_dense_convolutions_but_the_first():
    names = layer_names("timm:test_efficientnet", "lora")
    net = network("timm:test_efficientnet", IMAGE, 4).features
    convolutions = {n: m for n, m in net.named_modules() if isinstance(m, nn.Conv2d)}
    assert set(names) == {n for n, m in convolutions.items() if m.groups == 1 and n != "conv_stem"}
    assert {m.groups > 1 for m in convolutions.values()} == {True, False}


def test_norms_and_attention_are_trained_alone_with_the_head():
    names = trained("timm:test_efficientnet", "norms")
    assert names[-2:] == ["head.weight", "head.bias"]
    assert all("bn" in name or "norm" in name for name in names[:-2])
    names = trained("small:vit", "attention")
    assert {name.split(".")[3] for name in names[:-2]} == {"attn"}
    assert len(names) == 4 * 4 + 2
    assert trained("small:vit", "head") == ["head.weight", "head.bias"]


class ResidualAttentionBlock(nn.Module):
    """As in open_clip: a block that contains attention is not attention itself."""

    def __init__(self):
        super().__init__()
        self.attn = nn.MultiheadAttention(4, 2)
        self.mlp = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))


def test_blocks_that_contain_attention_are_no_attention():
    def block():
        return Classifier(nn.Sequential(ResidualAttentionBlock()), 4, 2)

    net = block()
    tune_network(net, "attention", "clip", 3)
    frozen = [n for n, p in net.features.named_parameters() if not p.requires_grad]
    assert [name.split(".")[1] for name in frozen] == ["mlp"] * 4
    net = block()
    tune_network(net, "lora:rank=2", "clip", 3)
    layers = [name.removeprefix("features.0.") for name, _ in adapted_layers(net)]
    assert layers == ["attn", "attn.out_proj", "mlp.0", "mlp.2"]


@pytest.mark.parametrize(
    ("name", "tune", "message"),
    [
        ("small:resnet18", "attention", "small:resnet18 has no attention; use norms"),
        ("small:mlp", "norms", "small:mlp has no normalization"),
        ("small:vit", "lora:layers=qkw", "has no layer 'qkw'; did you mean 'qkv'"),
        ("small:vit", "lora:layers=convolutions", "has no layer 'convolutions'"),
        ("small:vit", "lora:rank=65", "the layers of small:vit have at most rank 64"),
        ("linear", "lora", "linear has no layer that LoRA could change"),
    ],
)
def test_what_a_network_does_not_have_is_refused_in_one_line(name, tune, message):
    with pytest.raises(SpecError, match=message) as caught:
        trained(name, tune, IMAGE if name.startswith("small:") and "mlp" not in name else (6,))
    assert "\n" not in str(caught.value)


def test_rates_decay_towards_the_input():
    net = Classifier(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)), 2, 2)
    rates = layer_rates(nn.Sequential(net), decay=0.5, head=4.0)
    expected = {"features.0": 0.25, "features.2": 0.5, "head": 4.0}
    assert {name: rates[id(net.get_submodule(name).weight)] for name in expected} == expected
    vit = network("small:vit", IMAGE, 4)
    rates = layer_rates(vit, decay=0.5, head=1.0)
    found = {name: rates[id(p)] for name, p in vit.named_parameters()}
    assert found["features.pos_embed"] == found["features.patch_embed.proj.weight"] == 0.5**5
    blocks = [found[f"features.blocks.{i}.attn.qkv.weight"] for i in range(4)]
    assert blocks == [0.5**4, 0.5**3, 0.5**2, 0.5]
    assert found["features.fc_norm.weight"] == found["head.weight"] == 1.0


def test_a_rate_of_the_head_leaves_the_layers_alone():
    vit = network("small:vit", IMAGE, 4)
    rates = layer_rates(vit, decay=1.0, head=10.0)
    assert rates == {id(vit.head.weight): 10.0, id(vit.head.bias): 10.0}
    assert layer_rates(nn.Linear(2, 2), decay=0.5, head=2.0) == {}
