"""Factors beside the weights of a network: what they compute, merged and apart."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from afield.networks.backbone import Classifier, network
from afield.networks.lora import (
    adapted_layers,
    adapter_tensors,
    add_factors,
    changing_state,
    largest_rank,
    load_changing_state,
    merge_factors,
    merged_state,
)
from afield.networks.tuning import tune_network

IMAGE = (3, 32, 32)


def adapted(name="small:vit", tune="lora:rank=3,alpha=5", *, seed=0):
    """A network with factors that are no longer zero, and its name."""
    torch.manual_seed(seed)
    net = network(name, IMAGE, 4)
    tune_network(net, tune, name, IMAGE[0])
    for _, layer in adapted_layers(net):
        nn.init.normal_(layer.lora_B, std=0.1)
    return net


def images(count=5):
    return torch.randn(count, *IMAGE, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", ["small:vit", "small:cnn", "torchvision:shufflenet_v2_x0_5"])
def test_merged_weights_give_the_outputs_of_the_factors(name):
    net = adapted(name)
    plain = network(name, IMAGE, 4)
    plain.load_state_dict(merged_state(net))
    with torch.no_grad():
        evaluated = net.eval()(images())
        # Evaluation uses the same matrices, so the bits are equal too.
        assert torch.equal(plain.eval()(images()), evaluated)
        for _, layer in adapted_layers(net):
            layer.training = True
        torch.testing.assert_close(net(images()), evaluated, rtol=0, atol=1e-6)


def attention(*, batch_first=True):
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(8, 2, batch_first=batch_first)
    x = torch.randn(3, 5, 8)
    return layer, x


def test_factors_of_torch_s_attention_are_merged_too():
    layer, x = attention()
    before = layer(x, x, x)[0]
    for each in (layer, layer.out_proj):
        add_factors(each, rank=2, alpha=4)
    assert torch.equal(layer(x, x, x)[0], before)
    for each in (layer, layer.out_proj):
        nn.init.normal_(each.lora_B)
    changed = layer(x, x, x)[0]
    assert not torch.allclose(changed, before, atol=1e-2)
    changed.sum().backward()
    assert layer.lora_A.grad.abs().sum() > 0
    assert layer.out_proj.lora_B.grad.abs().sum() > 0
    merge_factors(layer)
    assert type(layer) is nn.MultiheadAttention
    torch.testing.assert_close(layer(x, x, x)[0], changed, rtol=0, atol=1e-6)


def layers():
    return [
        (nn.Linear(6, 4), torch.randn(7, 6)),
        (nn.Conv2d(2, 5, 3, padding=1), torch.randn(7, 2, 6, 6)),
        (nn.Conv1d(2, 9, 3, stride=2), torch.randn(7, 2, 8)),
    ]


@pytest.mark.parametrize("number", range(3))
def test_at_full_rank_a_step_on_the_product_is_a_step_on_the_weights(number):
    torch.manual_seed(0)
    layer, x = layers()[number]
    full, lr = copy.deepcopy(layer), 0.1
    rank = layer.weight[0].numel()
    add_factors(layer, rank=rank, alpha=rank)
    # With A A' = 1 and B = 0, a step on B changes B A by the step on the weights.
    with torch.no_grad():
        layer.lora_A.copy_(torch.eye(rank).view(layer.lora_A.shape))
    weights = torch.randn_like(full(x))
    for each, trained in ((full, full.weight), (layer, layer.lora_B)):
        optimizer = torch.optim.SGD([trained], lr=lr)
        (weights * each(x)).sum().backward()
        optimizer.step()
    merged = merged_state(layer)["weight"]
    assert not torch.allclose(merged, layers()[number][0].weight)
    torch.testing.assert_close(merged, full.weight.detach(), rtol=0, atol=2e-6)


def test_the_largest_rank_is_that_of_the_matrix():
    assert [largest_rank(layer) for layer, _ in layers()] == [4, 5, 6]


def test_layers_keep_their_class_and_the_names_of_their_tensors():
    net, names = adapted(), [*network("small:vit", IMAGE, 4).state_dict()]
    assert isinstance(net.features.blocks[0].attn.qkv, nn.Linear)
    state = net.state_dict()
    assert [name for name in state if not name.endswith(("lora_A", "lora_B"))] == names
    merged = merged_state(net)
    assert list(merged) == names
    merge_factors(net)
    assert type(net.features.blocks[0].attn.qkv) is nn.Linear
    assert all(torch.equal(merged[name], value) for name, value in net.state_dict().items())
    assert net.features.blocks[0].attn.qkv.weight.requires_grad


def test_only_what_changes_is_kept_and_restored():
    net, other = adapted(), adapted(seed=0)
    names = {name.rpartition(".")[2] for name in changing_state(net)}
    assert names == {"lora_A", "lora_B", "weight", "bias"}
    assert [n for n in changing_state(net) if not n.endswith(("A", "B"))] == [
        "head.weight",
        "head.bias",
    ]
    F.cross_entropy(net(images()), torch.arange(5) % 4).backward()
    torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=1.0).step()
    load_changing_state(other, changing_state(net))
    assert all(torch.equal(a, b) for a, b in zip(other.parameters(), net.parameters(), strict=True))


def test_a_higher_precision_than_that_of_the_forward_pass_merges():
    net = adapted().eval()
    layer = net.features.blocks[0].attn.qkv
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(layer.weight, merged_state(net)["features.blocks.0.attn.qkv.weight"])


class Pair(nn.Module):
    """A layer of attention and a convolution, whose adapters peft knows as well."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.attn = nn.MultiheadAttention(8, 2, batch_first=True)
        self.fc = nn.Linear(8, 6)

    def forward(self, x):
        tokens = self.conv(x).flatten(2).mT
        return self.fc(self.attn(tokens, tokens, tokens)[0]).mean(1)


@pytest.mark.slow
def test_peft_reads_the_factors():
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    net = Classifier(Pair(), 6, 4)
    reference = copy.deepcopy(net)
    for module in (net.features.conv, net.features.attn, net.features.attn.out_proj):
        add_factors(module, rank=2, alpha=6)
    add_factors(net.features.fc, rank=2, alpha=6)
    for _, layer in adapted_layers(net):
        nn.init.normal_(layer.lora_B)
    # Version 0.21 of peft adds the change of the last layer of an attention twice.
    nn.init.zeros_(net.features.attn.out_proj.lora_B)
    tensors = {n: t for n, t in adapter_tensors(net).items() if ".head." not in n}
    config = peft.LoraConfig(r=2, lora_alpha=6, target_modules=["conv", "attn", "fc"])
    theirs = peft.get_peft_model(reference, config)
    loaded = peft.set_peft_model_state_dict(theirs, tensors)
    assert not loaded.unexpected_keys
    assert not [name for name in loaded.missing_keys if "lora_" in name]
    theirs.base_model.model.head.load_state_dict(net.head.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(theirs.eval()(images()), net.eval()(images()), rtol=0, atol=1e-5)
