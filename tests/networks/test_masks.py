"""Masks from outside: what they do to a network in training, and to its predictions afterwards."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from afield.errors import SpecError
from afield.networks.backbone import Classifier, network
from afield.networks.masks import MaskedNetwork, fold_masks, hard_overlap, soft_overlap
from tests.files import GOLDEN
from tests.networks.inputs import DOMAINS, masked_network

REFERENCE = np.load(GOLDEN / "dmg.npz")
NETWORKS = [
    ("small:mlp", (6,)),
    ("small:cnn", (1, 28, 28)),
    ("small:lenet", (1, 16, 16)),
    ("timm:resnet18", (3, 64, 64)),
    ("timm:tf_efficientnet_lite0", (3, 64, 64)),
    pytest.param("timm:vit_tiny_patch16_224", (3, 32, 32), marks=pytest.mark.slow),
    pytest.param("torchvision:alexnet", (3, 64, 64), marks=pytest.mark.slow),
]


def reference(name: str) -> torch.Tensor:
    return torch.from_numpy(REFERENCE[f"f64/{name}"])


def logits() -> torch.Tensor:
    return torch.stack([reference(f"logits/{name}") for name in DOMAINS])


@pytest.fixture
def bare() -> MaskedNetwork:
    """The reference's layer: twelve units that go through masks and nothing else."""
    net = nn.Sequential(nn.Identity())
    masked = MaskedNetwork(net, torch.zeros(1, 12), DOMAINS, layers=["0"]).double()
    masked.logits[0] = nn.Parameter(logits())
    return masked


def samples() -> tuple[torch.Tensor, torch.Tensor]:
    domain = torch.tensor([DOMAINS.index(name) for name in REFERENCE["f64/batch_domains"]])
    return reference("x").clone().requires_grad_(), domain


def assert_agrees(masked: MaskedNetwork, act: torch.Tensor, x: torch.Tensor, mode: str) -> None:
    """What comes out, and the gradients of its product with the reference's `tgt`."""
    exact = {"rtol": 0, "atol": 1e-10}
    torch.testing.assert_close(act, reference(f"{mode}/act"), **exact)
    (act * reference("tgt")).sum().backward()
    torch.testing.assert_close(x.grad, reference(f"{mode}/grad_x"), **exact)
    grads = torch.stack([reference(f"{mode}/grad_logits/{name}") for name in DOMAINS])
    torch.testing.assert_close(masked.logits[0].grad, grads, **exact)


@pytest.mark.parametrize("mode", ["sample", "greedy", "softscale", "avg_mask_softscale"])
def test_outputs_and_gradients_are_those_of_the_reference(bare, mode, monkeypatch):
    x, domain = samples()
    if mode == "sample":
        monkeypatch.setattr(torch, "bernoulli", lambda p: reference("sample/mask"))
        act = bare.train()(x, domain)
    elif mode in ("greedy", "softscale"):
        bare.hard = mode == "greedy"
        act = bare.eval()(x, domain)
    else:
        bare.combine = "masks"
        act = bare.eval()(x)
    assert_agrees(bare, act, x, mode)


def test_maps_are_masked_by_channel_as_in_the_reference(monkeypatch):
    x = reference("conv/x")
    masked = MaskedNetwork(nn.Sequential(nn.Identity()), x[:1], DOMAINS, layers=["0"]).double()
    masked.logits[0] = nn.Parameter(logits())
    monkeypatch.setattr(torch, "bernoulli", lambda p: reference("conv/mask"))
    act = masked.train()(x, samples()[1])
    torch.testing.assert_close(act, reference("conv/act"), rtol=0, atol=1e-10)


def test_overlaps_are_those_of_the_reference():
    m = logits().requires_grad_()
    pairs = soft_overlap(m.sigmoid())
    exact = {"rtol": 0, "atol": 1e-10}
    torch.testing.assert_close(pairs, reference("pairwise_siou"), **exact)
    penalty = pairs.mean()
    torch.testing.assert_close(penalty, reference("overlap_penalty"), **exact)
    penalty.backward()
    grads = torch.stack([reference(f"overlap_grad/{name}") for name in DOMAINS])
    torch.testing.assert_close(m.grad, grads, **exact)
    paper = soft_overlap(m.sigmoid(), smooth=0.0).sum()
    torch.testing.assert_close(paper, reference("paper_sum_siou_no_smooth"), **exact)
    torch.testing.assert_close(m.sigmoid().sum(), reference("sparsity_penalty"), **exact)
    hard = hard_overlap(m.sigmoid())
    # The authors compute these in single precision.
    torch.testing.assert_close(hard, reference("hard_iou")[:3], rtol=0, atol=3e-8)
    torch.testing.assert_close(hard.mean(), reference("hard_iou")[3], rtol=0, atol=3e-8)


@pytest.mark.parametrize(("name", "shape"), NETWORKS)
def test_masks_of_probability_one_leave_the_network_as_it_is(name, shape):
    for combine in ("predictions", "masks", "guessed"):
        masked, plain = masked_network(name, shape, combine)
        for each in masked.logits:
            nn.init.constant_(each, 50.0)
        x = torch.randn(4, *shape)
        with torch.no_grad():
            expected = plain(x)
            for result in (masked(x), masked(x, 1), masked(x, torch.tensor([0, 2, 1, 1]))):
                torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("name", "shape"), NETWORKS)
def test_networks_of_every_kind_train_with_masks(name, shape):
    masked, _ = masked_network(name, shape)
    masked.train()(torch.randn(4, *shape), torch.tensor([0, 2, 1, 1])).square().sum().backward()
    assert all(each.grad.abs().sum() > 0 for each in masked.logits)


@pytest.mark.parametrize(("name", "shape"), NETWORKS)
def test_predictions_are_the_mean_of_those_with_every_domains_masks(name, shape):
    masked, _ = masked_network(name, shape)
    x = torch.randn(3, *shape)
    with torch.no_grad():
        each = torch.stack([masked(x, domain) for domain in range(3)])
        torch.testing.assert_close(masked(x), each.mean(dim=0), rtol=1e-4, atol=1e-5)
        assert not torch.allclose(each[0], each[1])


def test_one_pass_equals_the_mean_of_predictions_where_the_rest_is_linear():
    net = Classifier(nn.Linear(6, 8), 8, 4)
    masked = MaskedNetwork(net, torch.zeros(1, 6), DOMAINS, layers=["head"]).eval()
    x = torch.randn(7, 6)
    mean = masked(x)
    masked.combine = "masks"
    torch.testing.assert_close(masked(x), mean)


def test_what_comes_before_the_first_masked_layer_is_computed_once(monkeypatch):
    masked, _ = masked_network("timm:resnet18", (3, 64, 64))
    rows = {}
    for name in ("features.layer3", "features.layer4", "head"):
        module = masked.net.get_submodule(name)
        module.register_forward_hook(lambda *a, name=name: rows.update({name: len(a[2])}))
    with torch.no_grad():
        masked(torch.randn(2, 3, 64, 64))
    assert rows == {"features.layer3": 2, "features.layer4": 6, "head": 6}


def test_guesses_weight_the_predictions():
    masked, _ = masked_network("small:mlp", (6,), "guessed")
    x = torch.randn(5, 6)
    nn.init.zeros_(masked.guess.weight)
    with torch.no_grad():
        masked.guess.bias.copy_(torch.tensor([0.0, 30.0, 0.0]))
        torch.testing.assert_close(masked(x), masked(x, 1))
        masked.guess.bias.zero_()
        each = torch.stack([masked(x, domain) for domain in range(3)])
        torch.testing.assert_close(masked(x), each.mean(dim=0))


def test_every_sample_has_a_mask_of_its_own_with_the_odds_of_its_domain():
    torch.manual_seed(0)
    masked = MaskedNetwork(
        nn.Sequential(nn.Identity()), torch.zeros(1, 4), DOMAINS, layers=["0"]
    ).train()
    domain = torch.arange(3).repeat_interleave(2000)
    with torch.no_grad():
        kept = masked(torch.ones(6000, 4), domain)
    assert set(kept.unique().tolist()) == {0.0, 1.0}
    p = masked.probabilities()[0]
    assert ((p > 0.5) & (p < 0.74)).all()
    for number in range(3):
        torch.testing.assert_close(
            kept[domain == number].mean(0), p[number].detach(), rtol=0, atol=0.05
        )


def test_samples_of_one_domain_send_no_gradient_to_the_masks_of_another():
    masked, _ = masked_network("small:mlp", (6,))
    masked.train()(torch.randn(8, 6), torch.full((8,), 1)).square().sum().backward()
    for each in masked.logits:
        assert each.grad[1].abs().sum() > 0
        assert not each.grad[[0, 2]].any()


def test_a_copy_masks_with_its_own_logits():
    masked, _ = masked_network("small:mlp", (6,))
    other = copy.deepcopy(masked)
    x = torch.randn(3, 6)
    before = masked(x)
    for each in masked.logits:
        nn.init.constant_(each, -50.0)
    torch.testing.assert_close(other(x), before)
    assert not torch.allclose(masked(x), before)


def test_dropout_is_off():
    masked, _ = masked_network("small:lenet", (1, 16, 16))
    masked.train()
    dropouts = [module for module in masked.modules() if isinstance(module, nn.Dropout)]
    assert dropouts
    assert not any(module.training for module in dropouts)
    assert masked.net.head.training


def test_layers_can_be_named_and_come_in_the_order_of_the_network():
    net = network("small:mlp", (6,), 5)
    masked = MaskedNetwork(net, torch.zeros(1, 6), DOMAINS, layers=["head", "features.1"])
    assert masked.layers == ("features.1", "head")
    assert [tuple(each.shape) for each in masked.logits] == [(3, 6), (3, 64)]


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (["features.2.conv"], "no layer 'features.2.conv'; did you mean"),
        (["unused"], "layer 'unused' is not called; mask another layer"),
        (["twice"], "layer 'twice' is called twice, or named twice; mask another layer"),
        (
            ["features", "features"],
            "layer 'features' is called twice, or named twice; mask another layer",
        ),
    ],
)
def test_layers_that_cannot_be_masked_are_refused(layers, message):
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))
            self.unused, self.twice = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x):
            return self.twice(self.twice(self.features(x)))

    with pytest.raises(SpecError, match=message):
        MaskedNetwork(Odd(), torch.zeros(1, 6), DOMAINS, layers=layers)


def test_in_training_the_domains_must_be_known():
    masked, _ = masked_network("small:mlp", (6,))
    with pytest.raises(ValueError, match="give `domain`"):
        masked.train()(torch.randn(2, 6))


def test_called_directly_the_network_is_the_bare_one():
    masked, plain = masked_network("small:mlp", (6,))
    x = torch.randn(4, 6)
    torch.testing.assert_close(masked.net(x), plain(x))
    torch.testing.assert_close(masked.train().net(x), plain(x))


def test_a_layer_that_a_skip_connection_goes_around_is_refused():
    net = network("timm:resnet18", (3, 64, 64), 5)
    with pytest.raises(SpecError, match=r"'features.layer4.0.conv1' is bypassed by a skip"):
        MaskedNetwork(net, torch.zeros(2, 3, 64, 64), DOMAINS, layers=["features.layer4.0.conv1"])


def test_masks_that_keep_nothing_share_nothing():
    assert soft_overlap(torch.zeros(2, 5), smooth=0.0).tolist() == [0.0]


def test_a_guess_is_taken_once_and_then_gone():
    masked, _ = masked_network("small:mlp", (6,), "guessed")
    masked.train()(torch.randn(4, 6), torch.zeros(4).long())
    assert masked.pop_domain_logits().shape == (4, 3)
    copy.deepcopy(masked)
    with pytest.raises(ValueError, match="guessed"):
        masked.pop_domain_logits()


def test_one_domain_for_all_samples_still_has_a_mask_for_each():
    masked = MaskedNetwork(
        nn.Sequential(nn.Identity()), torch.zeros(1, 40), DOMAINS, layers=["0"]
    ).train()
    kept = masked(torch.ones(2, 40), 1)
    assert not torch.equal(kept[0], kept[1])


def test_dropout_of_whole_channels_is_off_as_well():
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Dropout2d(0.9), nn.Flatten(), nn.Linear(32, 2))
    masked = MaskedNetwork(net, torch.zeros(1, 1, 6, 6), DOMAINS, layers=["3"]).train()
    assert not net[1].training
    assert masked.net[3].training


@pytest.mark.slow
@pytest.mark.parametrize("name", ["timm:vgg11", "timm:eva02_tiny_patch14_224"])
def test_the_sample_itself_and_norms_are_not_masked(name):
    side = 28 if "eva" in name else 64
    net = network(name, (3, side, side), 5)
    masked = MaskedNetwork(net, torch.zeros(1, 3, side, side), DOMAINS)
    assert masked.layers[-1] == "head"
    assert not any("norm" in layer for layer in masked.layers)
    assert all(each.shape[1] > 3 for each in masked.logits)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("small:mlp", (6,)),
        ("small:cnn", (1, 28, 28)),
        ("small:lenet", (1, 16, 16)),
        ("timm:resnet18", (3, 64, 64)),
        ("timm:tf_efficientnet_lite0", (3, 64, 64)),
        pytest.param("torchvision:alexnet", (3, 64, 64), marks=pytest.mark.slow),
    ],
)
def test_folded_weights_load_into_the_bare_network_and_predict_the_same(name, shape):
    masked, plain = masked_network(name, shape, "masks")
    x = torch.randn(4, *shape)
    with torch.no_grad():
        expected = masked(x)
        weights = fold_masks(masked, torch.randn(2, *shape))
        # The masked network is as it was.
        torch.testing.assert_close(masked(x), expected)
        assert not torch.allclose(plain(x), expected, rtol=1e-2, atol=1e-3)
        plain.load_state_dict(weights)
        torch.testing.assert_close(plain(x), expected, rtol=1e-5, atol=1e-5)


def test_what_a_skip_connection_takes_cannot_be_folded():
    class Skip(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(6, 6)

        def forward(self, x):
            return x + self.inner(x)

    masked = MaskedNetwork(nn.Sequential(Skip()), torch.zeros(1, 6), DOMAINS, layers=["0"])
    with pytest.raises(SpecError, match="cannot be folded exactly"):
        fold_masks(masked, torch.randn(3, 6))


@pytest.mark.slow
def test_masks_before_a_norm_cannot_be_folded():
    masked, _ = masked_network("timm:vit_tiny_patch16_224", (3, 32, 32), "masks")
    with pytest.raises(SpecError, match=r"'features.blocks.10' cannot be folded"):
        fold_masks(masked, torch.randn(2, 3, 32, 32))


def test_convolutions_in_groups_are_folded_group_by_group():
    net = nn.Sequential(nn.Conv2d(6, 9, 3, groups=3), nn.Flatten(), nn.Linear(9 * 16, 2))
    masked = MaskedNetwork(
        net, torch.zeros(1, 6, 6, 6), DOMAINS, layers=["0"], combine="masks"
    ).eval()
    x = torch.randn(3, 6, 6, 6)
    plain = nn.Sequential(nn.Conv2d(6, 9, 3, groups=3), nn.Flatten(), nn.Linear(9 * 16, 2))
    plain.load_state_dict(fold_masks(masked, x))
    torch.testing.assert_close(plain(x), masked(x))
