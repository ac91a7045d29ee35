"""Stored images as input of a network: resized for evaluation, augmented for training.

Level `full` is DomainBed's: a random crop (70 to 100 % of the area, sides 3:4 to 4:3) resized to
the input size; a horizontal flip with probability 0.5; brightness, contrast, saturation and hue
changed by up to 0.3; grayscale with probability 0.1. Level `light` is for letters, digits and
icons, which a flip or another hue could turn into something else: crops of 80 to 100 % of the area,
sides 9:10 to 11:10, brightness and contrast changed by up to 0.1. Images that do not have three
channels get only brightness and contrast of the color operations.

All color operations are one affine map per image. Let luma(x) be the gray value of a color, R the
rotation of its hue, and b, c, s the factors of brightness, contrast and saturation (s = 0 for a
grayscale image). Then

    y = b (c (s z + (1 - s) luma(z)) + (1 - c) luma(mean of z)),  z = R x

is what torchvision computes as long as nothing is clamped, in any order of b, c and s. These
operations and the scaling therefore take one pass over the pixels.

Differs from torchvision (which DomainBed uses):

* Values are clamped to the valid range once, at the end, and not after every operation. One
  operation may bring back values that another pushed out of the range, and highlights keep more
  detail. Hue comes first. A random order would hardly show, because the other operations commute
  without clamps.
* Hue is a rotation about the gray axis of the RGB cube and not a shift in HSV. The two are equal
  for thirds of a turn. In between, the rotation keeps the mean of the channels, HSV the largest.
  Shifts by 0.1, 0.2 and 0.3 change the values of color images of PACS by 10, 20 and 29 of 255, and
  the two ways differ by 6, 7 and 3. The rotation pushes 3 to 5 % of the values out of the range.
* Crops are taken from the stored square, so the ratio of their sides refers to the square.

On a CPU, images are cropped one by one with torch's kernel for bytes. Tiny images, and all images
on a GPU, are cropped together by two matrix products. The kernel rounds to bytes after each axis:
before the color operations, the two differ by at most two gray levels of 255.
"""

from dataclasses import dataclass
from math import gcd, log, sqrt
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from afield.data.scaling import Scaling
from afield.errors import SpecError
from afield.registry import hint

# Luma weights of red, green and blue, as in Pillow. Torchvision's 0.2989 darkens white a little.
LUMA = (0.299, 0.587, 0.114)
# Number of crops to try before taking the whole image, as in torchvision.
CROP_TRIES = 10
# Images with up to this many values are cropped together on a CPU too, which saves calls.
MAX_BATCHED_CROP_VALUES = 2**12
# Floats processed together on a CPU: about what its cache holds from one pass to the next.
CPU_CHUNK_FLOATS = 2**20
# Neighboring pixels per row of the color product; a product of rows of three values is slow.
PIXELS_PER_PRODUCT_ROW = 4


@dataclass(frozen=True)
class Level:
    """Strength of the augmentation.

    `jitter` is the largest change of brightness, contrast, saturation and hue; `flip` and `gray`
    are probabilities.
    """

    area: tuple[float, float]
    ratio: tuple[float, float]
    jitter: tuple[float, float, float, float]
    flip: float
    gray: float


LEVEL_SETTINGS = {
    "light": Level((0.8, 1.0), (0.9, 1.1), jitter=(0.1, 0.1, 0.0, 0.0), flip=0.0, gray=0.0),
    "full": Level((0.7, 1.0), (3 / 4, 4 / 3), jitter=(0.3, 0.3, 0.3, 0.3), flip=0.5, gray=0.1),
}
LEVELS = ("light", "full")


class AugmentParams(NamedTuple):
    """Random parameters of each image.

    They are its crop (top, left, height, width), whether it is flipped, and two color matrices: one
    is applied to every pixel, the other to the mean color, and the results are added.
    """

    boxes: Tensor
    flips: Tensor
    matrices: Tensor
    mean_matrices: Tensor


@dataclass(frozen=True)
class Resize:
    """Resize images to the input size, if they have another, and scale them."""

    size: int
    scaling: Scaling

    def __call__(self, x: Tensor) -> Tensor:
        """Return scaled images, n x channels x size x size."""
        if x.shape[-2:] != (self.size, self.size):
            # Only the CPU has an interpolation kernel for bytes.
            x = x if x.device.type == "cpu" else x.float()
            x = F.interpolate(x, (self.size, self.size), mode="bilinear", antialias=True)
        pixels = x.permute(0, 2, 3, 1).contiguous()
        mean, std = (_per_row(values, pixels) for values in (self.scaling.mean, self.scaling.std))
        scaled = pixels.flatten(2).to(torch.float32, copy=True).sub_(mean).div_(std)
        return scaled.view_as(pixels).permute(0, 3, 1, 2)


@dataclass(frozen=True)
class Augmentation:
    """Crop, flip and recolor images at random, and scale them."""

    level: str
    size: int
    scaling: Scaling

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise SpecError(f"no augmentation level {self.level!r}; {hint(self.level, LEVELS)}")

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Return augmented images, n x channels x size x size; `generator` is on the CPU."""
        n, channels, side, _ = x.shape
        params = draw_params(LEVEL_SETTINGS[self.level], n, channels, side, generator)
        return apply_params(params, x, size=self.size, scaling=self.scaling)


def draw_params(
    level: Level, n: int, channels: int, side: int, generator: torch.Generator
) -> AugmentParams:
    """Draw the parameters of `n` images; how many numbers are drawn depends only on `n`."""
    u = torch.rand(n, 2 * CROP_TRIES + 8, generator=generator)
    area, ratio, position, jitter, chances = u.split((CROP_TRIES, CROP_TRIES, 2, 4, 2), dim=1)
    boxes = draw_boxes(level, side, area, ratio, position)
    gray, flip = chances.unbind(1)
    # Without jitter, the factors of brightness, contrast and saturation are 1 and the hue shift 0.
    factors = torch.tensor((1.0, 1.0, 1.0, 0.0)) + torch.tensor(level.jitter) * (2 * jitter - 1)
    factors[:, 2] *= gray >= level.gray
    if channels != 3:
        factors[:, 2:] = torch.tensor((1.0, 0.0))
    return AugmentParams(boxes, flip < level.flip, *color_matrices(factors, channels=channels))


def draw_boxes(level: Level, side: int, area: Tensor, ratio: Tensor, position: Tensor) -> Tensor:
    """Turn uniform numbers into crops: in each row, the first try that fits into the square.

    The area and the logarithm of width over height are uniform.
    """
    root = side * _between(*level.area, area).sqrt()
    tilt = _between(log(level.ratio[0]) / 2, log(level.ratio[1]) / 2, ratio).exp()
    sizes = torch.stack((root / tilt, root * tilt), dim=2).round()
    # The last try is the whole image, which always fits.
    sizes = F.pad(sizes, (0, 0, 0, 1), value=side)
    first = (sizes <= side).all(2).int().argmax(1)
    size = sizes[torch.arange(len(sizes)), first]
    corner = (position * (side - size + 1)).floor().minimum(side - size)
    return torch.cat((corner, size), dim=1).long()


def color_matrices(factors: Tensor, *, channels: int) -> tuple[Tensor, Tensor]:
    """Compute the color matrices from factors of brightness, contrast, saturation, and hue.

    Returns the matrices for the pixels and those for the mean color. Hue is in turns. Images that
    do not have three channels have no hue, and their gray value is the mean of the channels.
    """
    brightness, contrast, saturation, turns = factors[:, :, None, None].unbind(1)
    weights = torch.tensor(LUMA) if channels == 3 else torch.full((channels,), 1 / channels)
    luma = weights.expand(channels, channels)
    matrices = brightness * contrast * (luma + saturation * (torch.eye(channels) - luma))
    mean_matrices = brightness * (1 - contrast) * luma
    if channels != 3:
        return matrices, mean_matrices
    rotation = hue_rotation(turns)
    return matrices @ rotation, mean_matrices @ rotation


def hue_rotation(turns: Tensor) -> Tensor:
    """Rotation of colors about the gray axis, red towards green; `turns` is n x 1 x 1."""
    mean = torch.full((3, 3), 1 / 3)
    cross = torch.tensor(((0.0, -1.0, 1.0), (1.0, 0.0, -1.0), (-1.0, 1.0, 0.0))) / sqrt(3)
    angle = 2 * torch.pi * turns
    return mean + angle.cos() * (torch.eye(3) - mean) + angle.sin() * cross


def apply_params(params: AugmentParams, x: Tensor, *, size: int, scaling: Scaling) -> Tensor:
    """Apply the parameters to images; on a CPU, to one chunk of the batch at a time."""
    n, channels, side, _ = x.shape
    on_cpu = x.device.type == "cpu"
    one_by_one = on_cpu and channels * side * side > MAX_BATCHED_CROP_VALUES
    crop = crop_one_by_one if one_by_one else crop_batched
    step = max(1, CPU_CHUNK_FLOATS // (channels * size * size)) if on_cpu else max(1, n)
    params = params if on_cpu else AugmentParams(*(_to_device(p, x.device) for p in params))
    out = torch.empty(n, size, size, channels, device=x.device)
    for start in range(0, n, step):
        chunk = slice(start, start + step)
        boxes, flips, matrices, mean_matrices = (values[chunk] for values in params)
        crops = crop(x[chunk], boxes, flips, size)
        apply_colors(crops, matrices, mean_matrices, scaling, out[chunk])
    return out.permute(0, 3, 1, 2)


def crop_one_by_one(x: Tensor, boxes: Tensor, flips: Tensor, size: int) -> Tensor:
    """Crop and resize with torch's kernel for bytes, to n x size x size x channels."""
    out = torch.empty(len(x), size, size, x.shape[1])
    rows = zip(x.split(1), boxes.tolist(), flips.tolist(), out, strict=True)
    for image, (top, left, height, width), flip, out_row in rows:
        crop = image[:, :, top : top + height, left : left + width]
        crop = F.interpolate(crop, (size, size), mode="bilinear", antialias=True)
        out_row.copy_((crop.flip(3) if flip else crop)[0].permute(1, 2, 0))
    return out


def crop_batched(x: Tensor, boxes: Tensor, flips: Tensor, size: int) -> Tensor:
    """Crop and resize by a matrix product per axis, to n x size x size x channels."""
    n, channels, side, _ = x.shape
    down, across = axis_weights(boxes, size=size, side=side).unbind(1)
    across = torch.where(flips[:, None, None], across.flip(1), across)
    rows = down @ x.permute(0, 2, 3, 1).float().reshape(n, side, side * channels)
    rows = rows.view(n, size, side, channels).transpose(2, 3).reshape(n, size * channels, side)
    return (rows @ across.mT).view(n, size, channels, size).transpose(2, 3).contiguous()


def axis_weights(boxes: Tensor, *, size: int, side: int) -> Tensor:
    """Weights of stored pixels in new ones, n x 2 axes x size x side: bilinear, antialiased."""
    start, length = boxes.view(-1, 2, 2, 1, 1).float().unbind(1)
    stride = length / size
    new = torch.arange(size, device=boxes.device)[:, None] + 0.5
    old = torch.arange(side, device=boxes.device) + 0.5 - start
    distance = (old - stride * new).abs_().div_(stride.clamp(min=1))
    weights = (1 - distance).clamp_(min=0).mul_((old > 0) & (old < length))
    return weights.div_(weights.sum(3, keepdim=True))


def apply_colors(
    pixels: Tensor, matrices: Tensor, mean_matrices: Tensor, scaling: Scaling, out: Tensor
) -> None:
    """Write recolored, scaled and clamped pixels, n x height x width x channels, into `out`."""
    n, height, width, channels = pixels.shape
    mean, std = (_per_channel(values, channels) for values in (scaling.mean, scaling.std))
    mean_color = pixels.flatten(2).mean(1).view(n, width, channels).mean(1)[:, :, None]
    factor, offset = matrices / std, (mean_matrices @ mean_color - mean) / std
    k = gcd(height * width, PIXELS_PER_PRODUCT_ROW)
    identity = torch.eye(k, device=pixels.device)
    blocks = torch.einsum("ij,bcd->bidjc", identity, factor).reshape(n, k * channels, k * channels)
    # Write the offsets row by row; the product would broadcast them a few pixels at a time.
    out.flatten(2).copy_(offset.mT.repeat(1, 1, width))
    groups = out.view(n, -1, k * channels)
    torch.baddbmm(groups, pixels.view_as(groups), blocks, out=groups)
    low, high = (_per_row((end - scaling.mean) / scaling.std, pixels) for end in (0, 255))
    torch.clamp(out.flatten(2), low, high, out=out.flatten(2))


def _between(low: float, high: float, u: Tensor) -> Tensor:
    """Map numbers from 0…1 to low…high."""
    return low + (high - low) * u


def _per_channel(values: Tensor, channels: int) -> Tensor:
    """Mean or standard deviation of a scaling as a column with one row per channel."""
    return values.expand(channels, 1, 1)[:, 0]


def _per_row(values: Tensor, pixels: Tensor) -> Tensor:
    """Repeat values for a row of pixels: broadcasting a single pixel would be slow."""
    return _per_channel(values, pixels.shape[3])[:, 0].repeat(pixels.shape[2])


def _to_device(values: Tensor, device: torch.device) -> Tensor:
    """Copy a small tensor to another device without waiting for it."""
    pinned = values.pin_memory() if device.type == "cuda" else values
    return pinned.to(device, non_blocking=True)
