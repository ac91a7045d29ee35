"""The register of networks names what the installed libraries have, and says what networks cost."""

import pytest
import torch

from afield.networks.backbone import find_backbone, network
from afield.networks.cost import network_cost
from afield.networks.facts import (
    LEVELS,
    REGISTER,
    SWAG_NETWORKS,
    find_registered,
    network_facts,
    networks_of_level,
    pretraining_sentence,
)

# Networks of a GPU take minutes and gigabytes to build here.
SMALL = [facts for facts in REGISTER if facts.level != "large"]


@pytest.mark.parametrize("facts", REGISTER, ids=lambda facts: facts.name)
def test_the_libraries_have_every_network_under_its_name_and_at_its_size(facts):
    backbone = find_backbone(facts.name)
    assert backbone.has_pretrained_weights()
    assert backbone.input_form().size == facts.size
    assert network_facts(facts.name) is facts


def test_licences_and_repositories_are_those_of_timm():
    from timm.models import get_pretrained_cfg

    listed = [facts for facts in REGISTER if facts.name.startswith("timm:")]
    assert len(listed) == 5
    for facts in listed:
        config = get_pretrained_cfg(facts.name.partition(":")[2])
        assert facts.license.lower() == config.license
        assert facts.repository == config.hf_hub_id


def test_repositories_of_clips_are_those_of_open_clip():
    import open_clip

    for facts in (*networks_of_level("strong"), networks_of_level("large")[0]):
        model, _, tag = facts.name.removeprefix("clip:").partition("/")
        assert open_clip.get_pretrained_cfg(model, tag)["hf_hub"].rstrip("/") == facts.repository


@pytest.mark.slow
@pytest.mark.parametrize("facts", SMALL, ids=lambda facts: facts.name)
def test_parameters_and_multiplications_are_those_of_the_network(facts):
    features = network(facts.name, (3, facts.size, facts.size), 2).features
    cost = network_cost(features, torch.zeros(1, 3, facts.size, facts.size))
    assert facts.parameters == pytest.approx(cost.parameters / 1e6, abs=0.05)
    assert facts.gmacs == pytest.approx(cost.macs / 1e9, rel=0.02)


def test_multiplications_of_layers_are_counted_by_hand():
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.Flatten(), torch.nn.Linear(8 * 16, 5)
    )
    cost = network_cost(net, torch.zeros(1, 3, 4, 4))
    assert cost.macs == 16 * 8 * 3 * 9 + 8 * 16 * 5
    assert cost.parameters == 8 * 27 + 8 + 8 * 16 * 5 + 5
    assert all(parameter.requires_grad for parameter in net.parameters())


def test_every_level_has_networks_and_the_default_is_one():
    assert all(networks_of_level(level) for level in LEVELS)
    assert len(networks_of_level("fast")) == 1


@pytest.mark.parametrize(
    ("name", "licence", "seen", "of_web"),
    [
        ("timm:vit_base_patch16_dinov3", "dinov3-license", "LVD-1689M", True),
        ("clip:ViT-B-16/dfn2b", "apple-amlr", "(DFN)", True),
        ("clip:MobileCLIP-S1/datacompdr", "apple-amlr", "(DataComp)", True),
        ("clip:ViT-B-32-quickgelu/metaclip_400m", "CC-BY-NC-4.0", "(MetaCLIP)", True),
        ("clip:ViT-B-32/openai", "MIT", "(OpenAI)", True),
        ("timm:resnet50.tv_in1k", "BSD-3-Clause", "ImageNet-1k labels", False),
        ("timm:resnet50.fb_swsl_ig1b_ft_in1k", "CC-BY-NC-4.0", "Instagram", True),
        ("torchvision:vit_h_14", "CC-BY-NC-4.0", "Instagram", True),
        ("torchvision:resnet18", "BSD-3-Clause", "ImageNet-1k labels", False),
    ],
)
def test_networks_outside_the_register_have_their_own_licence_and_data(name, licence, seen, of_web):
    facts = network_facts(name)
    assert find_registered(name) is None
    assert (facts.license.lower(), facts.of_web) == (licence.lower(), of_web)
    assert seen in facts.pretraining


def test_networks_without_pretraining_have_no_facts():
    assert network_facts("small:cnn") is None
    assert pretraining_sentence(["small:cnn", "linear"]) == ""


def test_the_sentence_names_networks_of_the_same_data_together_and_warns_of_web_data():
    lites = ["timm:tf_efficientnet_lite0", "timm:tf_efficientnet_lite1"]
    sentence = pretraining_sentence([*lites, *lites])
    assert sentence == f"pretrained: {', '.join(lites)} on ImageNet-1k labels"
    assert "differ" not in sentence
    both = pretraining_sentence([lites[0], "clip:ViT-B-32-256/datacomp_s34b_b86k"])
    assert "differ in what they have seen" in both
    assert "Web data contain drawings" in both
    assert "unknown data" in pretraining_sentence(["timm:mobilenetv5_300m.gemma3n"])


def test_the_data_of_torchvisions_default_weights_are_those_that_their_names_state():
    import torchvision
    from torchvision.models import get_model_weights, list_models

    swag = [
        name
        for name in list_models(module=torchvision.models)
        if "SWAG" in str(get_model_weights(name).DEFAULT)
    ]
    assert sorted(swag) == sorted(SWAG_NETWORKS)
