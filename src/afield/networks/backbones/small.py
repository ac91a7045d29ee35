"""Small networks for small images, for texts and for arrays; they start from random weights.

Some are the networks of papers: DomainBed (`mnist_cnn`), CrossGrad (`lenet`, `resnet_2block`), and
Motiian (`ccsa`) and Sainath and Parada (`keyword_cnn`), whose networks CrossGrad uses as well.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from afield.data.modalities.text import Text
from afield.errors import SpecError
from afield.networks.backbone import Backbone, Shape
from afield.networks.sound_features import SoundFeatures
from afield.networks.text_features import ByteFeatures

__all__ = ["Small"]

# Least and greatest number of patches into which the small transformer cuts an image.
PATCH_COUNTS = (16, 64)
# Share of the units of the network for tables that are dropped in a training step.
TABLE_DROPOUT = 0.3


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


def _table(shape: Shape) -> nn.Module:
    """Two hidden layers of 64 units with dropout, for tables of hundreds of rows."""
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise((torch.Size(shape).numel(), 64, 64)):
        layers += [nn.Linear(before, after), nn.ReLU(inplace=True), nn.Dropout(TABLE_DROPOUT)]
    return nn.Sequential(*layers)


def _irm_mlp(shape: Shape) -> nn.Module:
    """The IRM paper's network: two hidden layers of 390 units, with Xavier's initialization."""
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise((torch.Size(shape).numel(), 390, 390)):
        layer = nn.Linear(before, after)
        nn.init.xavier_uniform_(layer.weight)
        nn.init.zeros_(layer.bias)
        layers += [layer, nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


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


def _ccsa(shape: Shape) -> nn.Module:
    """Motiian's two 3 × 3 convolutions and two hidden layers, as in the authors' code for CCSA.

    Motiian, Piccirilli, Adjeroh, Doretto, *Unified Deep Supervised Domain Adaptation and
    Generalization*, ICCV 2017. CrossGrad trains this network on rotated MNIST.
    """
    if min(shape[1:]) < 6:
        raise SpecError(f"small:ccsa needs images of 6 pixels or more; {shape[1:]} is too small")
    hidden = 32 * ((shape[1] - 4) // 2) * ((shape[2] - 4) // 2)
    return nn.Sequential(
        nn.Conv2d(shape[0], 32, kernel_size=3),
        nn.ReLU(inplace=True),
        nn.Conv2d(32, 32, kernel_size=3),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(hidden, 120),
        nn.ReLU(inplace=True),
        nn.Linear(120, 84),
        nn.ReLU(inplace=True),
    )


def _keyword_cnn(shape: Shape) -> nn.Module:
    """Two convolutions over frequency × time, after Sainath and Parada's cnn-trad-fpool3.

    Sainath, Parada, *Convolutional Neural Networks for Small-footprint Keyword Spotting*,
    Interspeech 2015. CrossGrad used the version of TensorFlow's tutorial on speech commands, which
    is the one here. Differs from the paper: there the first layer pools three frequencies and no
    time, and a linear layer of 32 and a hidden layer of 128 units follow the convolutions.
    """
    return nn.Sequential(
        *_padded_convolution(shape[0], frequencies=8, frames=20),
        # At an odd length, the last window is incomplete, as in TensorFlow.
        nn.MaxPool2d(2, ceil_mode=True),
        *_padded_convolution(64, frequencies=4, frames=10),
        nn.Flatten(),
    )


def _padded_convolution(channels: int, *, frequencies: int, frames: int) -> list[nn.Module]:
    """64 filters of even sizes, with an output as large as the input; the larger margin is last."""
    margins = (frames // 2 - 1, frames // 2, frequencies // 2 - 1, frequencies // 2)
    convolution = nn.Conv2d(channels, 64, kernel_size=(frequencies, frames))
    return [nn.ZeroPad2d(margins), convolution, nn.ReLU(inplace=True), nn.Dropout(0.5)]


def _resnet(shape: Shape, *, model: str) -> nn.Module:
    """Torchvision's ResNet with a 3 × 3 stem of stride 1 and without its first pooling."""
    from torchvision.models import get_model

    net: Any = get_model(model, weights=None)
    net.conv1 = _stem(shape[0])
    net.maxpool, net.fc = nn.Identity(), nn.Identity()
    return net


def _two_block_resnet(shape: Shape) -> nn.Module:
    """Two residual blocks of 64 and 128 channels after a 3 × 3 stem; the mean over all pixels.

    CrossGrad compares LeNet with "a 2-block ResNet" and does not describe it further; the authors'
    code does not contain it. Widths and strides here are those of a ResNet-18's first two stages.
    """
    from torchvision.models.resnet import BasicBlock

    halved = nn.Sequential(nn.Conv2d(64, 128, 1, stride=2, bias=False), nn.BatchNorm2d(128))
    return nn.Sequential(
        _stem(shape[0]),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        BasicBlock(64, 64),
        BasicBlock(64, 128, stride=2, downsample=halved),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )


def _stem(channels: int) -> nn.Conv2d:
    """A first convolution that keeps small images at their size, initialized as in a ResNet."""
    stem = nn.Conv2d(channels, 64, kernel_size=3, padding=1, bias=False)
    nn.init.kaiming_normal_(stem.weight, mode="fan_out", nonlinearity="relu")
    return stem


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
    "table": _table,
    "audio": SoundFeatures,
    "irm_mlp": _irm_mlp,
    "lenet": _lenet,
    "mnist_cnn": _mnist_cnn,
    "ccsa": _ccsa,
    "keyword_cnn": _keyword_cnn,
    "resnet_2block": _two_block_resnet,
    "resnet18": partial(_resnet, model="resnet18"),
    "resnet34": partial(_resnet, model="resnet34"),
    "vit": _vit,
    "text": lambda _: ByteFeatures(Text().vocabulary),
}
# Networks whose samples are not images.
NOT_FOR_IMAGES = ("mlp", "table", "irm_mlp", "text")
# The packages that define the networks which are not defined here.
PACKAGES = {"vit": "timm"} | dict.fromkeys(("resnet_2block", "resnet18", "resnet34"), "torchvision")


@dataclass(frozen=True)
class Small(Backbone):
    """A small network with random weights."""

    patterns: ClassVar[tuple[str, ...]] = tuple(f"small:{model}" for model in BUILDERS)

    @property
    def package(self) -> str:
        """Timm for the transformer, torchvision for the ResNets; the others are defined here."""
        return PACKAGES.get(self.model, "")

    @property
    def takes_text(self) -> bool:
        """Whether it is the network for texts."""
        return self.model == "text"

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
        if self.model not in NOT_FOR_IMAGES:
            self.require_images(shape)
        if self.takes_text:
            self.require_tokens(shape)
        return BUILDERS[self.model](shape), None
