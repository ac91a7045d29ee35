"""Small networks for small images and for arrays; they start from random weights."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from afield.errors import SpecError
from afield.networks.backbone import Backbone, Shape

__all__ = ["Small"]

# Least and greatest number of patches into which the small transformer cuts an image.
PATCH_COUNTS = (16, 64)


class Quadrants(nn.Module):
    """Means over the four quadrants of an image; they overlap if a side is odd.

    Computes the same as `nn.AdaptiveAvgPool2d(2)`, whose gradient is not deterministic on a GPU.
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


def _cnn(shape: Shape) -> nn.Module:
    """Three convolutions that halve the image, each normalized per sample, pooled to 2 × 2.

    GroupNorm with one group is the fastest normalization here in the channels_last layout. Like
    every normalization per sample, it keeps no statistics of the source domains.
    """
    widths = (shape[0], 16, 32, 64)
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [
            nn.Conv2d(before, after, kernel_size=3, stride=2, padding=1),
            nn.ReLU(inplace=True),
            nn.GroupNorm(1, after),
        ]
    return nn.Sequential(*layers, Quadrants(), nn.Flatten())


def _mlp(shape: Shape) -> nn.Module:
    """Two hidden layers of 64 units on the flattened input."""
    inputs = torch.Size(shape).numel()
    hidden = [
        nn.Linear(inputs, 64),
        nn.ReLU(inplace=True),
        nn.Linear(64, 64),
        nn.ReLU(inplace=True),
    ]
    return nn.Sequential(nn.Flatten(), *hidden)


def _lenet(shape: Shape) -> nn.Module:
    """CrossGrad's network for characters; the head is its last layer."""
    if min(shape[1:]) < 8:
        raise SpecError(
            f"small:lenet halves an image three times; {shape[1:]} is too small, use --set size=8 "
            "or more"
        )
    layers: list[nn.Module] = []
    for before, after in pairwise((shape[0], 32, 64, 128)):
        layers += [nn.Conv2d(before, after, kernel_size=5, padding=2), nn.ReLU(inplace=True)]
        layers += [nn.MaxPool2d(2)]
    inputs = 128 * (shape[1] // 8) * (shape[2] // 8)
    hidden = [nn.Linear(inputs, 128), nn.ReLU(inplace=True), nn.Dropout(0.5)]
    hidden += [nn.Linear(128, 64), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.Flatten(), *hidden)


def _mnist_cnn(shape: Shape) -> nn.Module:
    """DomainBed's network for MNIST: convolutions, each with ReLU and GroupNorm(8); mean pixel."""
    layers: list[nn.Module] = []
    for before, after, stride in ((shape[0], 64, 1), (64, 128, 2), (128, 128, 1), (128, 128, 1)):
        layers += [
            nn.Conv2d(before, after, kernel_size=3, stride=stride, padding=1),
            nn.ReLU(inplace=True),
            nn.GroupNorm(8, after),
        ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def _vit(shape: Shape) -> nn.Module:
    """Timm's vision transformer: four blocks of width 64 on 16 to 64 patches, averaged at the end.

    Weights and position embeddings start larger than in large transformers. With the usual small
    values, it would take many more steps to distinguish positions.
    """
    from timm.models.vision_transformer import VisionTransformer

    net: Any = VisionTransformer(
        img_size=(shape[1], shape[2]),
        patch_size=_patch_size(shape),
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
    return net


def _patch_size(shape: Shape) -> int:
    """Side of the largest patches that divide an image into an allowed number of them."""
    height, width = shape[1:]
    least, most = PATCH_COUNTS
    for side in range(min(height, width), 0, -1):
        if height % side == width % side == 0 and least <= height * width // side**2 <= most:
            return side
    raise SpecError(
        f"small:vit cuts an image into {least} to {most} equal squares, which is impossible for "
        f"{(height, width)}; use another --set size, such as 16, 28, 32 or 64, or another network"
    )


BUILDERS: dict[str, Callable[[Shape], nn.Module]] = {
    "cnn": _cnn,
    "mlp": _mlp,
    "lenet": _lenet,
    "mnist_cnn": _mnist_cnn,
    "vit": _vit,
}


@dataclass(frozen=True)
class Small(Backbone):
    """A small network with random weights."""

    patterns: ClassVar[tuple[str, ...]] = tuple(f"small:{model}" for model in BUILDERS)

    @property
    def package(self) -> str:
        """Timm for the transformer; the other networks are defined here."""
        return "timm" if self.model == "vit" else ""

    def check(self) -> None:
        """Raise `UnknownNameError` if there is no such network."""
        if self.model not in BUILDERS:
            raise self.unknown(self.patterns)

    def build(
        self, shape: Shape, *, weights: str, class_names: Sequence[str]
    ) -> tuple[nn.Module, Tensor | None]:
        """The network without its head."""
        del class_names
        if weights:
            raise SpecError(f"{self.name} starts from random weights; omit --weights {weights}")
        if self.model != "mlp":
            self.require_images(shape)
        return BUILDERS[self.model](shape), None
