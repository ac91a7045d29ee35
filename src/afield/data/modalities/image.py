"""Image files as squares of bytes, and samples as images to look at.

Files may have any color mode, bit depth and shape.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from afield.files import check_regular_file

__all__ = [
    "IMAGE_ERRORS",
    "IMAGE_SUFFIXES",
    "compare_images",
    "image_size",
    "read_image",
    "resize_square",
    "silence_pillow",
    "stored_side",
    "to_rgb",
]

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff")
# Pillow tries no other format, whatever the suffix: for PostScript it would start Ghostscript.
IMAGE_FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "TIFF")
# Raised by Pillow for broken files and for files that are not images.
IMAGE_ERRORS = (OSError, ValueError, SyntaxError, Image.DecompressionBombError)
HIGH_DEPTH_MODES = ("I;16", "I;16L", "I;16B", "I", "F")
# EXIF tag for the orientation of the camera, and the transposition that undoes each value.
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
# Smallest side in pixels; placeholders of web pages are smaller, real images are not.
MIN_SIDE = 4


def stored_side(size: int) -> int:
    """Side at which images are stored for a network that sees `size` pixels.

    It is a little larger than `size`, so that random crops have room to vary.

    >>> stored_side(224)
    256
    """
    return round(size * 8 / 7)


@contextmanager
def silence_pillow() -> Iterator[None]:
    """Suppress Pillow's warnings about large images and odd metadata.

    Use it around all threads that read images, not inside them: warning filters belong to the
    process.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL\.")
        yield


def image_size(file: Path) -> tuple[int, int]:
    """Width and height of an image file, from its header."""
    check_regular_file(file)
    with Image.open(file, formats=IMAGE_FORMATS) as image:
        return image.size


def read_image(file: Path | IO[bytes], side: int) -> NDArray[np.uint8]:
    """Read an image as side × side × 3, resized to a square as in DomainBed's evaluation.

    The result has the same form for all files. A form chosen by looking at the files would let the
    images of the unseen domain influence the training.
    """
    try:
        return _read_square(file, side)
    except (*IMAGE_ERRORS, MemoryError):
        raise
    # A broken header can raise struct.error, or something else.
    except Exception as error:
        raise ValueError(f"broken: {error or type(error).__name__}") from error


def _read_square(file: Path | IO[bytes], side: int) -> NDArray[np.uint8]:
    if isinstance(file, Path):
        check_regular_file(file)
    with Image.open(file, formats=IMAGE_FORMATS) as image:
        if min(image.size) < MIN_SIDE:
            raise ValueError(f"{image.width} × {image.height} pixels, too small for an image")
        image.draft("RGB", (side, side))
        upright = _to_eight_bits(_turn_upright(image))
        # Pillow only honors the transparency of a palette when converting to RGBA.
        rgb = (upright.convert("RGBA") if upright.mode == "P" else upright).convert("RGB")
    return resize_square(rgb, side)


def resize_square(image: Image.Image, side: int) -> NDArray[np.uint8]:
    """Resize an RGB image to a square."""
    return np.asarray(image.resize((side, side), Image.Resampling.BILINEAR))


def _turn_upright(image: Image.Image) -> Image.Image:
    """Undo the orientation of the camera.

    ``ImageOps.exif_transpose`` would rewrite all metadata and fails if they are slightly invalid.
    """
    # For some formats, Pillow transposes the image on loading and drops the tag.
    image.load()
    transpose = UPRIGHT_TRANSPOSES.get(image.getexif().get(EXIF_ORIENTATION, 1))
    return image if transpose is None else image.transpose(transpose)


def _to_eight_bits(image: Image.Image) -> Image.Image:
    """Scale grayscale of more than 8 bits to 8 bits; Pillow would clip all values above 255."""
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
    """Convert a sample to height × width × RGB; two channels become red and green."""
    values = x[:3].float()
    low, high = (0.0, 255.0)
    if x.dtype != torch.uint8:
        low, high = values.min().item(), values.max().item()
    pixels = ((values - low) / max(1e-6, high - low)).permute(1, 2, 0).numpy()
    if pixels.shape[2] == 2:
        return np.pad(pixels, ((0, 0), (0, 0), (0, 1)))
    return pixels


def compare_images(
    before: NDArray[np.float32],
    after: NDArray[np.float32],
    added: NDArray[np.float32],
    scale: float = 0.0,
) -> NDArray[np.float32]:
    """Show two versions of a sample on one scale, and their difference: blue below 0, red above.

    A difference of `scale` has the full color; by default, the largest one of this sample.
    """
    low, high = float(before.min()), float(before.max())
    scale = max(1e-12, scale or float(np.abs(added).max()))
    pair = [((x - low) / max(1e-6, high - low)).clip(0, 1) for x in (before, after)]
    first, second = (_three_channels(x).transpose(1, 2, 0) for x in pair)
    change = _three_channels(added / scale).mean(axis=0)
    up, down = change.clip(min=0), -change.clip(max=0)
    difference = np.stack([1 - down, 1 - up - down, 1 - up], axis=2)
    gap = np.ones((before.shape[1], max(1, before.shape[2] // 14), 3), dtype=np.float32)
    return np.concatenate([first, gap, second, gap, difference], axis=1).astype(np.float32)


def _three_channels(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the first three channels; with fewer than three, the first one repeated."""
    return x[:3] if len(x) >= 3 else np.repeat(x[:1], 3, axis=0)
