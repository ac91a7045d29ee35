"""Datasets of fonts: every font in a folder is a domain, the characters are the classes."""

from collections.abc import Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from string import ascii_uppercase, digits

import numpy as np
from fontTools.ttLib import TTFont
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from afield import seeds
from afield.data.cache import Arrays, cache_arrays, contents_digest
from afield.data.domains import Domain, DomainSet, ReadOptions
from afield.data.training_settings import Training
from afield.errors import DataError
from afield.files import check_regular_file
from afield.progress import track
from afield.seeds import derive_seed

FONT_SUFFIXES = (".ttf", ".otf", ".woff", ".woff2")
CHARACTERS = tuple(ascii_uppercase + digits)
SIDE = 32
MIN_IMAGES, MAX_IMAGES = 2, 18
MAX_DEGREES = 15.0
MIN_SCALE = 0.85
NOISE_STD = 16.0
# Longer side of a glyph as a fraction of the image; a square of it still fits at 15 degrees.
FILL_FRACTION = 0.75
# Glyphs are rotated at this many times their final size and then averaged, for smooth edges.
OVERSAMPLING = 2
# Size of the em, in sides of the image, at which glyphs are drawn first. It is large because the
# digits of some fonts are only 0.3 em high.
EM_SCALE = 6


def draw_glyphs(
    path: Path, *, side: int = SIDE, seed: int, characters: Sequence[str] = CHARACTERS
) -> tuple[NDArray[np.uint8], list[int]]:
    """Draw images of a font's characters, and return them with their indices in `characters`.

    Parameters
    ----------
    path
        Font file; if it is not a font, a ValueError gives the reason.
    side
        Height and width of the images in pixels.
    seed
        Seed of the number of images and of their angles, scales and noise; use one per font.
    characters
        Characters to draw. Those that the font lacks are left out; the others keep their indices.
    """
    inks = _draw_inks(path, characters, em=EM_SCALE * side)
    images, classes = [np.empty((0, side, side), np.uint8)], []
    for index, character in enumerate(characters):
        if character in inks:
            rng = np.random.default_rng(seeds.derive_seed("letters", seed, character))
            count = int(rng.integers(MIN_IMAGES, MAX_IMAGES + 1))
            images.append(_vary(_center(inks[character], side), count, rng))
            classes += [index] * count
    return np.concatenate(images), classes


def missing_characters(path: Path, characters: Sequence[str] = CHARACTERS) -> list[str]:
    """Characters that the font lacks, or has without an outline."""
    inks = _draw_inks(path, characters)
    return [character for character in characters if character not in inks]


def _draw_inks(
    path: Path, characters: Sequence[str], *, em: int = EM_SCALE * SIDE
) -> dict[str, Image.Image]:
    """Draw each character at this size of the em in pixels, cropped to its ink."""
    check_regular_file(path)
    data = path.read_bytes()
    coded = _coded_characters(data)
    inks = {}
    try:
        font = _load_font(data, em)
        for character in (c for c in characters if ord(c) in coded):
            left, top, right, bottom = font.getbbox(character)
            # One more pixel on each side: the box is rounded, and an empty image is an error.
            page = Image.new("L", (round(right - left) + 2, round(bottom - top) + 2))
            ImageDraw.Draw(page).text((1 - left, 1 - top), character, fill=255, font=font)
            if box := page.getbbox():
                inks[character] = page.crop(box)
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(f"the font cannot be drawn: {_first_line(error)}") from None
    return inks


def _coded_characters(data: bytes) -> set[int]:
    """Code points for which the font has a glyph."""
    if not data:
        raise ValueError("empty file")
    try:
        with TTFont(BytesIO(data), lazy=True) as font:
            # Brotli detects truncated data itself; FreeType would draw whatever is left.
            entries = font.reader.tables.values() if font.flavor != "woff2" else ()
            missing = max((e.offset + e.length for e in entries), default=0) - len(data)
            cmap = font.getBestCmap() or {}
    # A broken font can raise errors of brotli, zlib or struct, among others.
    except Exception as error:
        raise ValueError(f"not a font: {_first_line(error)}") from error
    if missing > 0:
        raise ValueError(f"truncated: {missing} bytes are missing")
    return set(cmap)


def _load_font(data: bytes, em: int) -> ImageFont.FreeTypeFont:
    """Load a font for drawing, in the basic layout, which is the same on every system.

    It takes bytes because, for a path it cannot read, Pillow uses a system font of that name.
    """
    try:
        return ImageFont.truetype(BytesIO(data), em, layout_engine=ImageFont.Layout.BASIC)
    except OSError:
        if not data.startswith(b"wOF2"):
            raise
        unpacked = BytesIO(_unpack_woff2(data))
        return ImageFont.truetype(unpacked, em, layout_engine=ImageFont.Layout.BASIC)


def _unpack_woff2(data: bytes) -> bytes:
    """Convert WOFF2 to TrueType or OpenType, for a FreeType that was built without Brotli."""
    unpacked = BytesIO()
    try:
        with TTFont(BytesIO(data), recalcBBoxes=False, recalcTimestamp=False) as font:
            font.flavor = None
            font.save(unpacked, reorderTables=False)
    except Exception as error:
        raise ValueError(_first_line(error)) from error
    return unpacked.getvalue()


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _center(ink: Image.Image, side: int) -> Image.Image:
    """Scale the ink and center it in an image of `OVERSAMPLING` times the final size."""
    scale = FILL_FRACTION * OVERSAMPLING * side / max(ink.size)
    width, height = (max(1, round(length * scale)) for length in ink.size)
    small = ink.resize((width, height), Image.Resampling.BOX)
    frame = Image.new("L", (OVERSAMPLING * side, OVERSAMPLING * side))
    frame.paste(small, ((OVERSAMPLING * side - width) // 2, (OVERSAMPLING * side - height) // 2))
    return frame


def _vary(frame: Image.Image, count: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Make copies of an image, each with its own rotation, scale and noise."""
    angles = rng.uniform(-MAX_DEGREES, MAX_DEGREES, count)
    scales = rng.uniform(MIN_SCALE, 1.0, count)
    clean = np.stack([_transform(frame, *pair) for pair in zip(angles, scales, strict=True)])
    noisy = clean + rng.normal(0.0, NOISE_STD, clean.shape)
    return noisy.round().clip(0, 255).astype(np.uint8)


def _transform(frame: Image.Image, degrees: float, scale: float) -> NDArray[np.uint8]:
    """Rotate and scale an image about its center, then average it down to its final size."""
    along, across = (f(np.radians(degrees)) / scale for f in (np.cos, np.sin))
    center = frame.width / 2
    shifts = center * (1 - along - across), center * (1 - along + across)
    matrix = (along, across, shifts[0], -across, along, shifts[1])
    turned = frame.transform(frame.size, Image.Transform.AFFINE, matrix, Image.Resampling.BICUBIC)
    return np.asarray(turned.reduce(OVERSAMPLING))


# To estimate the size of the cache.
APPROX_IMAGES_PER_FONT = 10 * len(CHARACTERS)


def is_font(path: Path) -> bool:
    """Whether a file has the name of a font."""
    return path.suffix.lower() in FONT_SUFFIXES and not path.name.startswith(".")


def font_dataset(path: Path) -> DomainSet:
    """Dataset of a folder of fonts, with 2 to 18 images of each character in each font."""
    path = path.resolve()
    try:
        files = sorted(child for child in path.iterdir() if is_font(child))
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    names = [file.stem for file in files]
    if len(files) < 2:
        raise DataError(f"{path}: {len(files)} font(s); at least two are needed")
    duplicate = next((name for name in names if names.count(name) > 1), None)
    if duplicate:
        raise DataError(f"{path}: two files are called {duplicate!r}; keep one of them")
    return DomainSet(
        name=path.name,
        domains=tuple(names),
        classes=CHARACTERS,
        reader=partial(_read, path, files),
        training=Training(steps=1000, batch=8, backbone="small:lenet", domains_per_step=16),
        origin=str(path),
        fingerprint=contents_digest(path, files),
    )


def _read(path: Path, files: list[Path], options: ReadOptions) -> dict[str, Domain]:
    del options
    arrays = cache_arrays(
        path,
        files,
        partial(_draw, path, files),
        description=f"letters of {SIDE} × {SIDE}",
        needed_bytes=len(files) * APPROX_IMAGES_PER_FONT * SIDE * SIDE,
    )
    sizes = arrays["sizes"].tolist()
    columns = arrays["x"].split(sizes), arrays["y"].split(sizes)
    return {file.stem: Domain(x, y) for file, x, y in zip(files, *columns, strict=True)}


def _draw(path: Path, files: list[Path]) -> Arrays:
    images, labels = [], []
    for file in track(files, f"drawing {path.name}", len(files)):
        try:
            x, y = draw_glyphs(file, side=SIDE, seed=derive_seed("letters", file.stem))
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise DataError(f"{file}: {reason}; remove it from the folder") from None
        if not len(y):
            raise DataError(f"{file}: has none of the characters {''.join(CHARACTERS)}; remove it")
        images.append(x[:, None])
        labels.append(np.asarray(y, np.int64))
    return {
        "x": np.concatenate(images),
        "y": np.concatenate(labels),
        "sizes": np.array([len(y) for y in labels]),
    }
