"""Inputs, statistics and masked networks for several test files."""

import copy

import torch
from torch import nn

from afield.networks.backbone import network
from afield.networks.masks import MaskedNetwork

DOMAINS = ("art", "cartoon", "photo")


def inputs(shape: tuple[int, ...], n: int = 4) -> torch.Tensor:
    return torch.randn(n, *shape, generator=torch.Generator().manual_seed(0))


def statistics(model: nn.Module) -> list[torch.Tensor]:
    """Copies of the running statistics of a network."""
    return [buffer.clone() for name, buffer in model.named_buffers() if "running" in name]


def masked_network(
    name: str, shape: tuple[int, ...], combine: str = "predictions"
) -> tuple[MaskedNetwork, nn.Module]:
    """A network with masks, and a copy of it without."""
    torch.manual_seed(0)
    net = network(name, shape, 5)
    plain = copy.deepcopy(net).eval()
    return MaskedNetwork(net, torch.zeros(1, *shape), DOMAINS, combine=combine).eval(), plain
