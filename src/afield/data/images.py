"""One picture file as a square of bytes, whatever its mode, depth and shape; and samples shown."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

__all__ = [
    "IMAGE_ERRORS",
    "IMAGE_SUFFIXES",
    "compare_images",
    "read_image",
    "resize_square",
    "silence_pillow",
    "stored_side",
    "to_rgb",
]

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff")
# What Pillow raises for files that are no pictures, or broken ones.
IMAGE_ERRORS = (OSError, ValueError, SyntaxError, Image.DecompressionBombError)
HIGH_DEPTH_MODES = ("I;16", "I;16L", "I;16B", "I", "F")
# How a camera was held, and what turns its picture upright.
EXIF_ORIENTATION = 0x0112
UPRIGHT_TRANSPOSES = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# Placeholders of web pages are smaller than that, pictures are not.
MIN_SIDE = 4


def stored_side(size: int) -> int:
    """The side at which pictures are kept, a little above what the network sees.

    So that random crops find something to choose from.

    >>> stored_side(224)
    256
    """
    return round(size * 8 / 7)


@contextmanager
def silence_pillow() -> Iterator[None]:
    """Without Pillow's warnings: large is not yet a bomb, and odd metadata are of no matter.

    To be put around all threads that read pictures, not into them: warnings are the process's.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL\.")
        yield


def read_image(file: Path, side: int) -> NDArray[np.uint8]:
    """The picture as side × side × 3, squeezed to a square as in DomainBed's evaluation.

    One form for all, whatever the files are like: a form chosen by looking at them would let the
    unseen domain's pictures have a say in the training.
    """
    try:
        return _square(file, side)
    except (*IMAGE_ERRORS, MemoryError):
        raise
    # What a broken header leads to may be struct's error, or another.
    except Exception as error:
        raise ValueError(f"broken: {error or type(error).__name__}") from error


def _square(file: Path, side: int) -> NDArray[np.uint8]:
    with Image.open(file) as image:
        if min(image.size) < MIN_SIDE:
            raise ValueError(f"{image.width} × {image.height} pixels, too small for a picture")
        image.draft("RGB", (side, side))
        plain = _eight_bits(_upright(image))
        # Transparency of a palette is only understood on the way to RGBA.
        plain = (plain.convert("RGBA") if plain.mode == "P" else plain).convert("RGB")
    return resize_square(plain, side)


def resize_square(image: Image.Image, side: int) -> NDArray[np.uint8]:
    """A picture in colour as a square."""
    return np.asarray(image.resize((side, side), Image.Resampling.BILINEAR))


def _upright(image: Image.Image) -> Image.Image:
    """Pillow's own function writes all metadata anew, and fails for those that are a bit odd."""
    # Of some formats, Pillow turns the pictures by itself, and drops the tag, when it reads them.
    image.load()
    turn = UPRIGHT_TRANSPOSES.get(image.getexif().get(EXIF_ORIENTATION, 1))
    return image if turn is None else image.transpose(turn)


def _eight_bits(image: Image.Image) -> Image.Image:
    """Deeper grey as 8-bit grey: Pillow's own conversion would clip everything above 255."""
    if image.mode not in HIGH_DEPTH_MODES:
        return image
    values = np.asarray(image, dtype=np.float64)
    if not np.isfinite(values).all():
        raise ValueError("NaN or infinity among the pixels")
    if image.mode == "F":
        values = values * 255 if values.max() <= 1 else values
    elif image.mode != "I" or values.max() > 255:
        values = values / 257
    return Image.fromarray(values.round().clip(0, 255).astype(np.uint8))


def to_rgb(x: Tensor) -> NDArray[np.float32]:
    """A sample as height × width × red, green, blue; of two channels red and green."""
    values = x[:3].float()
    least, most = (0.0, 255.0)
    if x.dtype != torch.uint8:
        least, most = values.min().item(), values.max().item()
    pixels = ((values - least) / max(1e-6, most - least)).permute(1, 2, 0).numpy()
    if pixels.shape[2] == 2:
        return np.pad(pixels, ((0, 0), (0, 0), (0, 1)))
    return pixels


def compare_images(
    before: NDArray[np.float32], after: NDArray[np.float32], added: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Two versions of a sample on one scale, and their difference: blue below 0, red above."""
    least, most = float(before.min()), float(before.max())
    scale = max(1e-12, float(np.abs(added).max()))
    pair = [((x - least) / max(1e-6, most - least)).clip(0, 1) for x in (before, after)]
    grey = [_three_channels(x).transpose(1, 2, 0) for x in pair]
    change = _three_channels(added / scale).mean(axis=0)
    up, down = change.clip(min=0), -change.clip(max=0)
    colour = np.stack([1 - down, 1 - up - down, 1 - up], axis=2)
    gap = np.ones((before.shape[1], max(1, before.shape[2] // 14), 3), dtype=np.float32)
    return np.concatenate([grey[0], gap, grey[1], gap, colour], axis=1).astype(np.float32)


def _three_channels(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """The first three channels, the first repeated where there is one."""
    return x[:3] if len(x) >= 3 else np.repeat(x[:1], 3, axis=0)
