"""A network for log-mel features that does not depend on how loud a recording is.

    recording    its values have mean 0 and standard deviation 1
    training     a band of frequencies and a stretch of time are masked, as in SpecAugment
    convolutions three, which halve frequencies and frames, each normalized per sample
    pooling      mean and standard deviation over time of every channel at every frequency

Park, Chan, Zhang, Chiu, Zoph, Cubuk, Le, *SpecAugment*, Interspeech 2019. The masks are drawn anew
in every forward pass of training from torch's generator, as dropout is. Every recording has its
own; masked values become 0, which is the mean.
"""

from itertools import pairwise

import torch
from torch import Tensor, nn

# Numbers of channels of the convolutions.
WIDTHS = (16, 32, 64)
# Largest share of the frequencies, and of the time, that is masked.
MAX_MASKED = 0.2
EPSILON = 1e-5


class SoundFeatures(nn.Module):
    """Features of samples × 1 × frequencies × frames."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in pairwise((shape[0], *WIDTHS)):
            layers += [
                nn.Conv2d(before, after, kernel_size=3, stride=2, padding=1),
                nn.ReLU(inplace=True),
                nn.GroupNorm(1, after),
            ]
        self.blocks = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """Mean and standard deviation over time, for every channel and frequency."""
        x = normalize_recordings(x)
        if self.training:
            x = mask_bands(mask_bands(x, axis=2), axis=3)
        return pool_time(self.blocks(x))


def normalize_recordings(x: Tensor) -> Tensor:
    """Recordings with mean 0 and standard deviation 1; silence becomes 0."""
    centered = x - x.mean(dim=(1, 2, 3), keepdim=True)
    variance = centered.square().mean(dim=(1, 2, 3), keepdim=True)
    return centered / (variance + EPSILON).sqrt()


def mask_bands(x: Tensor, *, axis: int) -> Tensor:
    """Set a band of each sample along an axis to 0; its place and width are random."""
    shape = [len(x), 1, 1, 1]
    width = MAX_MASKED * torch.rand(shape, device=x.device)
    start = (1 - width) * torch.rand(shape, device=x.device)
    size = x.shape[axis]
    places = (torch.arange(size, device=x.device) + 0.5) / size
    places = places.view([1] * axis + [size] + [1] * (3 - axis))
    return x.masked_fill((places > start) & (places < start + width), 0.0)


def pool_time(x: Tensor) -> Tensor:
    """Mean and standard deviation over the last axis, flattened."""
    mean = x.mean(dim=3)
    variance = (x - mean[..., None]).square().mean(dim=3)
    return torch.cat([mean, (variance + EPSILON).sqrt()], dim=1).flatten(1)
