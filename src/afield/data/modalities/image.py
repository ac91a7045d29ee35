"""Image files, as squares of bytes.

Files may have any color mode, bit depth and shape.
"""

import io
import json
import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow
from torch import Tensor

from afield.data.domains import Domain
from afield.data.modality import ExportForm, Fact, FileModality
from afield.files import check_regular_file

if TYPE_CHECKING:
    from afield.data.inputs import Inputs

__all__ = ["Image"]

# Pillow tries no other format, whatever the suffix: for PostScript it would start Ghostscript.
IMAGE_FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "TIFF")
# Raised by Pillow for broken files and for files that are not images.
IMAGE_ERRORS = (OSError, ValueError, SyntaxError, Pillow.DecompressionBombError)
HIGH_DEPTH_MODES = ("I;16", "I;16L", "I;16B", "I", "F")
# EXIF tag for the orientation of the camera, and the transposition that undoes each value.
EXIF_ORIENTATION = 0x0112
UPRIGHT_TRANSPOSES = {
    2: Pillow.Transpose.FLIP_LEFT_RIGHT,
    3: Pillow.Transpose.ROTATE_180,
    4: Pillow.Transpose.FLIP_TOP_BOTTOM,
    5: Pillow.Transpose.TRANSPOSE,
    6: Pillow.Transpose.ROTATE_270,
    7: Pillow.Transpose.TRANSVERSE,
    8: Pillow.Transpose.ROTATE_90,
}
# Smallest side in pixels; placeholders of web pages are smaller, real images are not.
MIN_SIDE = 4
# Files of a domain whose headers are read for the sizes of the images.
MAX_HEADERS = 2000


@dataclass(frozen=True)
class Image(FileModality):
    """Image files, as squares of bytes in red, green and blue."""

    name = "pictures"
    noun = "image"
    suffixes = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff")
    task = "image-classification"
    example = "new/*.jpg"
    python_example = "new/1.jpg"
    resizable = True
    decode_errors = IMAGE_ERRORS

    def stored_side(self, size: int) -> int:
        """Return a side a little above `size`, so that random crops have room to vary.

        >>> Image().stored_side(224)
        256
        """
        return round(size * 8 / 7)

    def decoding(self) -> AbstractContextManager[None]:
        """Suppress the warnings of Pillow."""
        return silence_pillow()

    def decode(self, file: Path, side: int) -> NDArray[Any]:
        """Decode an image to side × side × 3."""
        return read_image(file, side)

    def read_header(self, file: Path) -> None:
        """Check the format and the size of an image."""
        try:
            width, height = image_size(file)
        except (*IMAGE_ERRORS, MemoryError):
            raise
        except Exception as error:
            raise ValueError(f"broken: {error or type(error).__name__}") from error
        if min(width, height) < MIN_SIDE:
            raise ValueError(f"{width} × {height} pixels, too small for an image")

    def decode_cell(self, cell: object, side: int) -> NDArray[Any]:
        """Decode the bytes of an image in a cell of a table."""
        content = cell.get("bytes") if isinstance(cell, Mapping) else cell
        if not isinstance(content, bytes):
            raise ValueError("no image bytes")  # noqa: TRY004  like a broken file
        return read_image(io.BytesIO(content), side)

    def cache_form(self, side: int) -> str:
        """Name of images of this side."""
        return f"pictures of {side} × {side}"

    def empty_row(self, side: int) -> NDArray[Any]:
        """Bytes, side × side × 3."""
        return np.empty((side, side, 3), np.uint8)

    def to_samples(self, rows: Tensor) -> Tensor:
        """Move the channels, which the cache keeps last, to the front."""
        return rows.permute(0, 3, 1, 2)

    def resize(self, x: NDArray[Any], side: int) -> NDArray[Any]:
        """Resize color images of another size to a square, as those in files are."""
        is_color = x.dtype == np.uint8 and x.ndim == 4 and x.shape[-1] == 3
        if not is_color or x.shape[1:3] == (side, side):
            return x
        return np.stack([resize_square(Pillow.fromarray(image), side) for image in x])

    def statistics(self, x: Tensor) -> dict[str, Tensor]:
        """Brightness and contrast, from 0 to 255."""
        values = x.flatten(1).float()
        return {"brightness": values.mean(dim=1), "contrast": values.std(dim=1)}

    def file_statistics(self, file: Path) -> dict[str, float]:
        """Width and height in pixels."""
        try:
            width, height = image_size(file)
        except (OSError, ValueError):
            return {}
        return {"width": float(width), "height": float(height)}

    def facts(self, domains: Mapping[str, Domain]) -> list[Fact]:
        """Width and height of the smallest, median and largest image file of each domain, by area.

        Only headers are read, of at most `MAX_HEADERS` files per domain.
        """
        facts = []
        for name, domain in domains.items():
            if domain.folder is None:
                continue
            step = max(1, len(domain.names) // MAX_HEADERS)
            with silence_pillow():
                files = (domain.folder / file for file in domain.names[::step])
                by_area = sorted(map(image_size, files), key=lambda size: (math.prod(size), size))
            sizes = by_area[0], by_area[len(by_area) // 2], by_area[-1]
            facts += [
                Fact(f"{which} image", size, name)
                for which, size in zip(("smallest", "median", "largest"), sizes, strict=True)
            ]
        return facts

    def export_form(self, inputs: "Inputs") -> ExportForm:
        """Images at the size of the network, as the decoder and the preparation make them."""
        form, (side, *others) = super().export_form(inputs), _sides(inputs)
        steps = ["turn the image upright by its EXIF orientation and convert it to RGB"]
        steps += [f"resize it to {side} × {side} pixels (Pillow, bilinear), whatever its shape"]
        steps += [f"then to {other} × {other} (Pillow, bilinear)" for other in others]
        steps += ["order it as channels × height × width, as float32 from 0 to 255", form.steps]
        return replace(form, steps="; ".join(steps))

    def export_metadata(self, inputs: "Inputs") -> dict[str, str]:
        """The sides to which images are resized before the network, one after the other."""
        return {"sides": json.dumps(_sides(inputs))}


def _sides(inputs: "Inputs") -> list[int]:
    """The sides to which an image is resized: in files as stored, and as the network sees it."""
    side = inputs.stored[-1]
    return [side, inputs.size] if inputs.size and inputs.size != side else [side]


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
    with Pillow.open(file, formats=IMAGE_FORMATS) as image:
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
    with Pillow.open(file, formats=IMAGE_FORMATS) as image:
        if min(image.size) < MIN_SIDE:
            raise ValueError(f"{image.width} × {image.height} pixels, too small for an image")
        image.draft("RGB", (side, side))
        upright = _to_eight_bits(_turn_upright(image))
        # Pillow only honors the transparency of a palette when converting to RGBA.
        rgb = (upright.convert("RGBA") if upright.mode == "P" else upright).convert("RGB")
    return resize_square(rgb, side)


def resize_square(image: Pillow.Image, side: int) -> NDArray[np.uint8]:
    """Resize an RGB image to a square."""
    return np.asarray(image.resize((side, side), Pillow.Resampling.BILINEAR))


def _turn_upright(image: Pillow.Image) -> Pillow.Image:
    """Undo the orientation of the camera.

    ``ImageOps.exif_transpose`` would rewrite all metadata and fails if they are slightly invalid.
    """
    # For some formats, Pillow transposes the image on loading and drops the tag.
    image.load()
    transpose = UPRIGHT_TRANSPOSES.get(image.getexif().get(EXIF_ORIENTATION, 1))
    return image if transpose is None else image.transpose(transpose)


def _to_eight_bits(image: Pillow.Image) -> Pillow.Image:
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
    return Pillow.fromarray(values.round().clip(0, 255).astype(np.uint8))
