"""From stored pictures to what a network sees: resized for evaluation, varied for training.

Level `full` is DomainBed's: a random crop (70 to 100 % of the area, sides 3:4 to 4:3) brought to
size, a flip half the time, brightness, contrast, saturation and hue by up to 0.3, grey one time in
ten. Level `light` is for letters, digits and icons, which a flip or another hue would make into
something else: crops of 80 to 100 %, sides 9:10 to 11:10, brightness and contrast by up to 0.1. Of
the colour operations, pictures without three channels take these two only.

All colour operations are one affine map for each picture. With luma(x) the grey of a colour, R the
turn of its hue, and b, c, s the factors of brightness, contrast and saturation (0: a grey picture),

    y = b (c (s z + (1 - s) luma(z)) + (1 - c) luma(mean of z)),  z = R x

is what torchvision computes as long as nothing is clamped, in whatever order b, c and s come. So
these, and the scaling, take one pass over the pixels.

Differs from torchvision (what DomainBed uses):

* Values are clamped to the valid range once, at the end, and not after every operation: what one
  operation pushes out of the range another may bring back, and highlights keep more detail. Hue
  comes first; a random order would hardly show, for without clamps the others commute.
* Hue is a rotation about the grey axis of the RGB cube and not a shift in HSV. They are equal for
  thirds of a turn. Between, the rotation keeps the mean of the channels, HSV the largest: shifts by
  0.1, 0.2 and 0.3 change the values of coloured pictures of PACS by 10, 20 and 29 of 255, and the
  two ways differ by 6, 7 and 3. The rotation pushes 3 to 5 % of the values out of the range.
* Crops are taken from the stored square, so the ratio of their sides is that in the square.

On a CPU pictures are cropped one by one with torch's kernel for bytes; tiny ones, and all on a GPU,
at once by two matrix products. The kernel rounds to bytes after each axis: before any colours the
two differ by at most two grey levels of 255.
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

__all__ = ["LEVELS", "Augmentation", "Resize"]

# Luma of red, green and blue, as Pillow has it: torchvision's 0.2989 makes white a bit less white.
LUMA = (0.299, 0.587, 0.114)
# Crops are tried so often, then the whole picture is taken: as in torchvision.
CROP_TRIES = 10
# Pictures of up to so many values are cropped at once on a CPU too: a call for each costs more.
MAX_BATCHED_CROP_VALUES = 2**12
# Floats worked on at a time on a CPU: about what stays in its cache from one pass to the next.
CPU_CHUNK_FLOATS = 2**20
# Neighbouring pixels coloured by one row of a matrix product, which is slow for rows of three.
PIXELS_PER_PRODUCT_ROW = 4


@dataclass(frozen=True)
class Level:
    """How far pictures are varied; `jitter` is of brightness, contrast, saturation and hue."""

    area: tuple[float, float]
    ratio: tuple[float, float]
    jitter: tuple[float, float, float, float]
    flip: float
    grey: float


LEVEL_SETTINGS = {
    "light": Level((0.8, 1.0), (0.9, 1.1), jitter=(0.1, 0.1, 0.0, 0.0), flip=0.0, grey=0.0),
    "full": Level((0.7, 1.0), (3 / 4, 4 / 3), jitter=(0.3, 0.3, 0.3, 0.3), flip=0.5, grey=0.1),
}
LEVELS = ("light", "full")


class AugmentParams(NamedTuple):
    """What is done to each picture.

    Its crop (top, left, height, width), whether it is flipped, and the matrices that its colours go
    through and that its mean colour goes through to be added to them.
    """

    boxes: Tensor
    flips: Tensor
    matrices: Tensor
    mean_matrices: Tensor


@dataclass(frozen=True)
class Resize:
    """Pictures for evaluation: brought to size where they are not, and scaled."""

    size: int
    scaling: Scaling

    def __call__(self, x: Tensor) -> Tensor:
        """Scaled pictures, n x channels x size x size."""
        if x.shape[-2:] != (self.size, self.size):
            # Only the CPU has a kernel for bytes.
            x = x if x.device.type == "cpu" else x.float()
            x = F.interpolate(x, (self.size, self.size), mode="bilinear", antialias=True)
        pixels = x.permute(0, 2, 3, 1).contiguous()
        mean, std = (_row(part, pixels) for part in (self.scaling.mean, self.scaling.std))
        scaled = pixels.flatten(2).to(torch.float32, copy=True).sub_(mean).div_(std)
        return scaled.view_as(pixels).permute(0, 3, 1, 2)


@dataclass(frozen=True)
class Augmentation:
    """Pictures for training: cropped, flipped and coloured at random, and scaled."""

    level: str
    size: int
    scaling: Scaling

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise SpecError(f"no augmentation {self.level!r}; {hint(self.level, LEVELS)}")

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Varied and scaled pictures, n x channels x size x size; `generator` is a CPU's."""
        n, channels, side, _ = x.shape
        plan = draw_params(LEVEL_SETTINGS[self.level], n, channels, side, generator)
        return apply_params(plan, x, size=self.size, scaling=self.scaling)


def draw_params(
    level: Level, n: int, channels: int, side: int, generator: torch.Generator
) -> AugmentParams:
    """What to do to each of `n` pictures; how many numbers are drawn depends on `n` only."""
    u = torch.rand(n, 2 * CROP_TRIES + 8, generator=generator)
    area, ratio, place, jitter, rest = u.split((CROP_TRIES, CROP_TRIES, 2, 4, 2), dim=1)
    boxes = draw_boxes(level, side, area, ratio, place)
    grey, flip = rest.unbind(1)
    # As it is: brightness, contrast and saturation times one, hue turned by nothing.
    factors = torch.tensor((1.0, 1.0, 1.0, 0.0)) + torch.tensor(level.jitter) * (2 * jitter - 1)
    factors[:, 2] *= grey >= level.grey
    if channels != 3:
        factors[:, 2:] = torch.tensor((1.0, 0.0))
    return AugmentParams(boxes, flip < level.flip, *color_matrices(factors, channels=channels))


def draw_boxes(level: Level, side: int, area: Tensor, ratio: Tensor, place: Tensor) -> Tensor:
    """Crops from numbers between 0 and 1, the first of a row's tries that fits into the square.

    The area is uniform, and so is the logarithm of width over height.
    """
    root = side * _between(*level.area, area).sqrt()
    tilt = _between(log(level.ratio[0]) / 2, log(level.ratio[1]) / 2, ratio).exp()
    sizes = torch.stack((root / tilt, root * tilt), dim=2).round()
    # The whole picture comes last, and always fits.
    sizes = F.pad(sizes, (0, 0, 0, 1), value=side)
    first = (sizes <= side).all(2).int().argmax(1)
    taken = sizes[torch.arange(len(sizes)), first]
    corner = (place * (side - taken + 1)).floor().minimum(side - taken)
    return torch.cat((corner, taken), dim=1).long()


def color_matrices(factors: Tensor, *, channels: int) -> tuple[Tensor, Tensor]:
    """A plan's matrices and lifts from factors of brightness, contrast, saturation, and hue.

    Hue is in turns. Without three channels there is none, and grey is the mean.
    """
    brightness, contrast, saturation, turns = factors[:, :, None, None].unbind(1)
    one = torch.eye(channels)
    shares = torch.tensor(LUMA) if channels == 3 else torch.full((channels,), 1 / channels)
    luma = shares.expand(channels, channels)
    matrices = brightness * contrast * (luma + saturation * (one - luma))
    lifts = brightness * (1 - contrast) * luma
    if channels != 3:
        return matrices, lifts
    turned = hue_rotation(turns)
    return matrices @ turned, lifts @ turned


def hue_rotation(turns: Tensor) -> Tensor:
    """Matrices that turn colours about the grey axis, red towards green; `turns` is n x 1 x 1."""
    mean = torch.full((3, 3), 1 / 3)
    aside = torch.tensor(((0.0, -1.0, 1.0), (1.0, 0.0, -1.0), (-1.0, 1.0, 0.0))) / sqrt(3)
    angle = 2 * torch.pi * turns
    return mean + angle.cos() * (torch.eye(3) - mean) + angle.sin() * aside


def apply_params(plan: AugmentParams, x: Tensor, *, size: int, scaling: Scaling) -> Tensor:
    """Pictures with the plan applied to them, a piece of the batch at a time on a CPU."""
    n, channels, side, _ = x.shape
    on_cpu = x.device.type == "cpu"
    crops = (
        crop_one_by_one
        if on_cpu and channels * side * side > MAX_BATCHED_CROP_VALUES
        else crop_batched
    )
    step = max(1, CPU_CHUNK_FLOATS // (channels * size * size)) if on_cpu else max(1, n)
    plan = plan if on_cpu else AugmentParams(*(_moved(part, x.device) for part in plan))
    out = torch.empty(n, size, size, channels, device=x.device)
    for start in range(0, n, step):
        piece = slice(start, start + step)
        boxes, flips, matrices, lifts = (part[piece] for part in plan)
        apply_colors(crops(x[piece], boxes, flips, size), matrices, lifts, scaling, out[piece])
    return out.permute(0, 3, 1, 2)


def crop_one_by_one(x: Tensor, boxes: Tensor, flips: Tensor, size: int) -> Tensor:
    """Crops brought to size, n x size x size x channels, by torch's kernel for bytes."""
    out = torch.empty(len(x), size, size, x.shape[1])
    rows = zip(x.split(1), boxes.tolist(), flips.tolist(), out, strict=True)
    for picture, (top, left, height, width), flip, place in rows:
        crop = picture[:, :, top : top + height, left : left + width]
        crop = F.interpolate(crop, (size, size), mode="bilinear", antialias=True)
        place.copy_((crop.flip(3) if flip else crop)[0].permute(1, 2, 0))
    return out


def crop_batched(x: Tensor, boxes: Tensor, flips: Tensor, size: int) -> Tensor:
    """Crops brought to size, n x size x size x channels, by a matrix product for each axis."""
    n, channels, side, _ = x.shape
    down, across = axis_weights(boxes, size=size, side=side).unbind(1)
    across = torch.where(flips[:, None, None], across.flip(1), across)
    rows = down @ x.permute(0, 2, 3, 1).float().reshape(n, side, side * channels)
    rows = rows.view(n, size, side, channels).transpose(2, 3).reshape(n, size * channels, side)
    return (rows @ across.mT).view(n, size, channels, size).transpose(2, 3).contiguous()


def axis_weights(boxes: Tensor, *, size: int, side: int) -> Tensor:
    """Shares of stored pixels in new ones, n x 2 axes x size x side: bilinear, antialiased."""
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
    """Write coloured, scaled and clamped pixels, n x height x width x channels, into `out`."""
    n, height, width, channels = pixels.shape
    mean, std = (_column(part, channels) for part in (scaling.mean, scaling.std))
    colours = pixels.flatten(2).mean(1).view(n, width, channels).mean(1)[:, :, None]
    factor, offset = matrices / std, (mean_matrices @ colours - mean) / std
    k = gcd(height * width, PIXELS_PER_PRODUCT_ROW)
    one = torch.eye(k, device=pixels.device)
    blocks = torch.einsum("ij,bcd->bidjc", one, factor).reshape(n, k * channels, k * channels)
    # A row of offsets at a time: the product would spread them a few pixels at a time.
    out.flatten(2).copy_(offset.mT.repeat(1, 1, width))
    groups = out.view(n, -1, k * channels)
    torch.baddbmm(groups, pixels.view_as(groups), blocks, out=groups)
    low, high = (_row((end - scaling.mean) / scaling.std, pixels) for end in (0, 255))
    torch.clamp(out.flatten(2), low, high, out=out.flatten(2))


def _between(low: float, high: float, u: Tensor) -> Tensor:
    """Numbers from 0 to 1, spread between two ends."""
    return low + (high - low) * u


def _column(part: Tensor, channels: int) -> Tensor:
    """A scaling's mean or deviation, a row for each channel."""
    return part.expand(channels, 1, 1)[:, 0]


def _row(part: Tensor, pixels: Tensor) -> Tensor:
    """The same for a row of pixels: that of a single pixel would be gone through value by value."""
    return _column(part, pixels.shape[3])[:, 0].repeat(pixels.shape[2])


def _moved(part: Tensor, device: torch.device) -> Tensor:
    """A small tensor on another device, without waiting for it."""
    pinned = part.pin_memory() if device.type == "cuda" else part
    return pinned.to(device, non_blocking=True)
