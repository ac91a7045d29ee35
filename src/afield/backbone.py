"""Networks by name: ``small:cnn`` for pictures, ``small:mlp`` for arrays.

Every backbone is a `Classifier`: features, then one linear head.
"""

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn

from afield.catalog import hint
from afield.errors import SpecError, UnknownNameError

__all__ = ["Classifier", "network"]

Shape = tuple[int, ...]


class Classifier(nn.Module):
    """Features and a linear head; `width` is the number of features."""

    def __init__(self, features: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.features = features
        self.head = nn.Linear(width, classes)
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.head(self.features(x))


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


def network(name: str, shape: Shape, classes: int) -> Classifier:
    """A freshly initialised network for inputs of this shape (without the batch dimension)."""
    if name not in NETWORKS:
        raise UnknownNameError(f"no backbone {name!r}; {hint(name, list(NETWORKS))}")
    features, width = NETWORKS[name](shape)
    model = Classifier(features, width, classes)
    if len(shape) == 3:
        return model.to(memory_format=torch.channels_last)
    return model


def _cnn(shape: Shape) -> tuple[nn.Module, int]:
    """Three convolutions that halve the picture, each normalised per sample, pooled to 2 × 2.

    One group: over all channels it is the fastest norm here in the channels_last layout, and like
    every norm per sample it keeps no statistics of the source domains.
    """
    if len(shape) != 3:
        raise SpecError(f"small:cnn takes pictures, not samples of shape {shape}; use small:mlp")
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


NETWORKS: dict[str, Callable[[Shape], tuple[nn.Module, int]]] = {
    "small:cnn": _cnn,
    "small:mlp": _mlp,
}
