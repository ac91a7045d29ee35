"""One picture file as a square of bytes, whatever its mode, depth and shape."""

import warnings
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

__all__ = ["BROKEN", "PICTURES", "picture", "stored_side"]

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff")
# What Pillow raises for files that are no pictures, or broken ones.
BROKEN = (OSError, ValueError, SyntaxError, Image.DecompressionBombError)
DEEP = ("I;16", "I;16L", "I;16B", "I", "F")
# Placeholders of web pages are smaller than that, pictures are not.
LEAST = 4


def stored_side(size: int) -> int:
    """The side at which pictures are kept, a little above what the network sees.

    So that random crops find something to choose from.

    >>> stored_side(224)
    256
    """
    return round(size * 8 / 7)


def picture(file: Path, side: int) -> NDArray[np.uint8]:
    """The picture as side × side × 3, squeezed to a square as in DomainBed's evaluation.

    One form for all, whatever the files are like: a form chosen by looking at them would let the
    unseen domain's pictures have a say in the training.
    """
    with warnings.catch_warnings():
        # Large is not yet a bomb; those raise an error, twice as far on.
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        with Image.open(file) as image:
            if min(image.size) < LEAST:
                raise ValueError(f"{image.width} × {image.height} pixels, too small for a picture")
            image.draft("RGB", (side, side))
            plain = _eight_bits(ImageOps.exif_transpose(image))
            # Transparency of a palette is only understood on the way to RGBA.
            plain = (plain.convert("RGBA") if plain.mode == "P" else plain).convert("RGB")
    return np.asarray(plain.resize((side, side), Image.Resampling.BILINEAR))


def _eight_bits(image: Image.Image) -> Image.Image:
    """Deeper grey as 8-bit grey: Pillow's own conversion would clip everything above 255."""
    if image.mode not in DEEP:
        return image
    values = np.asarray(image, dtype=np.float64)
    if image.mode == "F":
        values = values * 255 if values.max() <= 1 else values
    elif image.mode != "I" or values.max() > 255:
        values = values / 257
    return Image.fromarray(values.round().clip(0, 255).astype(np.uint8))
