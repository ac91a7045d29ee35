"""Small networks, for small pictures and for arrays, that start from random weights.

Each is made for inputs of a shape, and comes with the number of its features.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from afield.errors import SpecError

__all__ = ["SMALL_BACKBONES", "Shape", "check_images"]

Shape = tuple[int, ...]
# Of how many patches a small transformer may see a picture.
PATCH_COUNTS = (16, 64)


class Quadrants(nn.Module):
    """Means over the four quadrants of a picture, overlapping where a side is odd.

    It is `nn.AdaptiveAvgPool2d(2)`, whose gradient on a GPU is not the same twice.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Samples × channels × 2 × 2."""
        height, width = x.shape[2:]
        if height == width == 2:
            return x
        if height % 2 == width % 2 == 0:
            halves = x.unflatten(3, (2, width // 2)).unflatten(2, (2, height // 2))
            return halves.mean(dim=(3, 5))
        rows = (x[:, :, : (height + 1) // 2], x[:, :, height // 2 :])
        means = [
            half.mean(dim=(2, 3))
            for row in rows
            for half in (row[:, :, :, : (width + 1) // 2], row[:, :, :, width // 2 :])
        ]
        return torch.stack(means, dim=2).unflatten(2, (2, 2))


def check_images(name: str, shape: Shape) -> None:
    """Refuse samples that are no pictures."""
    if len(shape) != 3:
        raise SpecError(f"{name} takes pictures, not samples of shape {shape}; use small:mlp")


def _cnn(shape: Shape) -> tuple[nn.Module, int]:
    """Three convolutions that halve the picture, each normalised per sample, pooled to 2 × 2.

    One group: over all channels it is the fastest norm here in the channels_last layout, and like
    every norm per sample it keeps no statistics of the source domains.
    """
    check_images("small:cnn", shape)
    widths = (shape[0], 16, 32, 64)
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [
            nn.Conv2d(before, after, kernel_size=3, stride=2, padding=1),
            nn.ReLU(inplace=True),
            nn.GroupNorm(1, after),
        ]
    return nn.Sequential(*layers, Quadrants(), nn.Flatten()), 4 * widths[-1]


def _mlp(shape: Shape) -> tuple[nn.Module, int]:
    """Two hidden layers of 64 units on the flattened input."""
    inputs = torch.Size(shape).numel()
    hidden = [
        nn.Linear(inputs, 64),
        nn.ReLU(inplace=True),
        nn.Linear(64, 64),
        nn.ReLU(inplace=True),
    ]
    return nn.Sequential(nn.Flatten(), *hidden), 64


def _lenet(shape: Shape) -> tuple[nn.Module, int]:
    """The network of CrossGrad's characters; the head is its last layer."""
    check_images("small:lenet", shape)
    if min(shape[1:]) < 8:
        raise SpecError(f"small:lenet halves a picture three times; {shape[1:]} is too small")
    layers: list[nn.Module] = []
    for before, after in pairwise((shape[0], 32, 64, 128)):
        layers += [nn.Conv2d(before, after, kernel_size=5, padding=2), nn.ReLU(inplace=True)]
        layers += [nn.MaxPool2d(2)]
    inputs = 128 * (shape[1] // 8) * (shape[2] // 8)
    hidden = [nn.Linear(inputs, 128), nn.ReLU(inplace=True), nn.Dropout(0.5)]
    hidden += [nn.Linear(128, 64), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.Flatten(), *hidden), 64


def _mnist_cnn(shape: Shape) -> tuple[nn.Module, int]:
    """DomainBed's network for MNIST: each convolution, ReLU, norm in eight groups; mean pixel."""
    check_images("small:mnist_cnn", shape)
    layers: list[nn.Module] = []
    for before, after, stride in ((shape[0], 64, 1), (64, 128, 2), (128, 128, 1), (128, 128, 1)):
        layers += [
            nn.Conv2d(before, after, kernel_size=3, stride=stride, padding=1),
            nn.ReLU(inplace=True),
            nn.GroupNorm(8, after),
        ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()), 128


def _vit(shape: Shape) -> tuple[nn.Module, int]:
    """A transformer of timm: four blocks of width 64 on 16 to 64 patches, of which it is the mean.

    Weights and positions start larger than in large ones, which would take many more steps to tell
    one place from another.
    """
    from timm.models.vision_transformer import VisionTransformer

    patch = _patch(shape)
    net: Any = VisionTransformer(
        img_size=(shape[1], shape[2]),
        patch_size=patch,
        in_chans=shape[0],
        num_classes=0,
        global_pool="avg",
        class_token=False,
        embed_dim=64,
        depth=4,
        num_heads=4,
        mlp_ratio=2.0,
        weight_init="moco",
    )
    nn.init.normal_(net.pos_embed, std=0.5)
    return net, 64


def _patch(shape: Shape) -> int:
    """The side of the largest squares of which a picture has as many as it should."""
    check_images("small:vit", shape)
    height, width = shape[1:]
    least, most = PATCH_COUNTS
    for side in range(min(height, width), 0, -1):
        if height % side == width % side == 0 and least <= height * width // side**2 <= most:
            return side
    raise SpecError(
        f"small:vit cuts a picture into {least} to {most} equal squares; {(height, width)} cannot "
        "be; use another --set size, such as 16, 28, 32 or 64, or another network"
    )


SMALL_BACKBONES: dict[str, Callable[[Shape], tuple[nn.Module, int]]] = {
    "small:cnn": _cnn,
    "small:mlp": _mlp,
    "small:lenet": _lenet,
    "small:mnist_cnn": _mnist_cnn,
    "small:vit": _vit,
}
