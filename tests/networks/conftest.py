"""A network whose weights several test files write to files."""

import pytest
import torch
from torch import nn


@pytest.fixture(scope="session")
def little_resnet() -> nn.Module:
    """The smallest of timm's ResNets, with weights and statistics unlike fresh ones."""
    import timm

    torch.manual_seed(1)
    net = timm.create_model("resnet10t", num_classes=10)
    net.train()(3 * torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0)))
    return net.eval()
