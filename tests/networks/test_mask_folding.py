"""Masks that are folded into weights: the same predictions, or a refusal."""

import pytest
import torch
from torch import nn

from afield.errors import SpecError
from afield.networks.masks import MaskedNetwork, fold_masks
from tests.networks.inputs import DOMAINS, masked_network


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
