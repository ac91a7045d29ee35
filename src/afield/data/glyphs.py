"""Characters drawn from font files as small grey pictures: one font, one domain.

Shankar et al. (2018) draw 26 letters and ten digits and do not say in which case. Here letters are
capitals; `characters` may be others. Of every character there are two to eighteen pictures, as in
the paper, which turns them and adds noise but does not say how much. Here:

    turned by up to 15 degrees either way, drawn at 85 to 100 % of the full size (both uniform),
    noise of standard deviation 16 on grey levels 0 (paper) to 255 (ink), clipped to that range.

Each glyph is scaled on its own, by its longer side, to three quarters of the picture, where it can
be turned without being cut, and its ink is centred. Everything random depends on the seed and the
character alone: give every font a seed of its own, or all have the same angles and the same noise.
"""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from string import ascii_uppercase, digits

import numpy as np
from fontTools.ttLib import TTFont
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from afield import seeds

__all__ = ["CHARACTERS", "FONT_SUFFIXES", "draw_glyphs", "missing_characters"]

FONT_SUFFIXES = (".ttf", ".otf", ".woff", ".woff2")
CHARACTERS = tuple(ascii_uppercase + digits)
SIDE = 32
MIN_IMAGES, MAX_IMAGES = 2, 18
MAX_DEGREES = 15.0
MIN_SCALE = 0.85
NOISE_STD = 16.0
# Of the side: a square of this size, turned by 15 degrees, still fits in.
FILL_FRACTION = 0.75
# Glyphs are turned at this many times their final size and then averaged, for smooth edges.
OVERSAMPLING = 2
# An em is first drawn at this many times the side: the digits of some fonts are 0.3 em high.
EM_SCALE = 6


def draw_glyphs(
    path: Path, *, side: int = SIDE, seed: int, characters: Sequence[str] = CHARACTERS
) -> tuple[NDArray[np.uint8], list[int]]:
    """Pictures of a font's characters, and of each picture the index of its character.

    Parameters
    ----------
    path
        A font file; one that is none raises a ValueError with the reason.
    side
        Height and width of the pictures in pixels.
    seed
        Which numbers, angles, sizes and noise; another for every font.
    characters
        What is drawn. Those that the font lacks are left out, and the others keep their indices.
    """
    inks = _inks(path, characters, em=EM_SCALE * side)
    pictures, classes = [np.empty((0, side, side), np.uint8)], []
    for index, character in enumerate(characters):
        if character in inks:
            rng = np.random.default_rng(seeds.derive_seed("letters", seed, character))
            count = int(rng.integers(MIN_IMAGES, MAX_IMAGES + 1))
            pictures.append(_varied(_framed(inks[character], side), count, rng))
            classes += [index] * count
    return np.concatenate(pictures), classes


def missing_characters(path: Path, characters: Sequence[str] = CHARACTERS) -> list[str]:
    """Those that the font does not have, or that it has without an outline."""
    inks = _inks(path, characters)
    return [character for character in characters if character not in inks]


def _inks(
    path: Path, characters: Sequence[str], *, em: int = EM_SCALE * SIDE
) -> dict[str, Image.Image]:
    """What the font draws for each of the characters at this size in pixels, cropped."""
    data = path.read_bytes()
    coded = _coded_characters(data)
    inks = {}
    try:
        font = _drawable(data, em)
        for character in (c for c in characters if ord(c) in coded):
            left, top, right, bottom = font.getbbox(character)
            # One pixel more on every side: the box is rounded, and an empty one cannot be drawn.
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
            # Brotli notices by itself when something is missing; FreeType would draw what is left.
            entries = font.reader.tables.values() if font.flavor != "woff2" else ()
            missing = max((e.offset + e.length for e in entries), default=0) - len(data)
            cmap = font.getBestCmap() or {}
    # What a broken font meets first may be brotli's, zlib's or struct's error, or another.
    except Exception as error:
        raise ValueError(f"not a font: {_first_line(error)}") from error
    if missing > 0:
        raise ValueError(f"truncated: {missing} bytes are missing")
    return set(cmap)


def _drawable(data: bytes, em: int) -> ImageFont.FreeTypeFont:
    """The font for drawing, in the basic layout, which is the same everywhere.

    Bytes, not a path: for a path that it cannot read, Pillow takes a system font of that name.
    """
    try:
        return ImageFont.truetype(BytesIO(data), em, layout_engine=ImageFont.Layout.BASIC)
    except OSError:
        if not data.startswith(b"wOF2"):
            raise
        plain = BytesIO(_unpacked(data))
        return ImageFont.truetype(plain, em, layout_engine=ImageFont.Layout.BASIC)


def _unpacked(data: bytes) -> bytes:
    """A WOFF2 font as TrueType or OpenType, for a FreeType that was built without Brotli."""
    plain = BytesIO()
    try:
        with TTFont(BytesIO(data), recalcBBoxes=False, recalcTimestamp=False) as font:
            font.flavor = None
            font.save(plain, reorderTables=False)
    except Exception as error:
        raise ValueError(_first_line(error)) from error
    return plain.getvalue()


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _framed(ink: Image.Image, side: int) -> Image.Image:
    """The ink in the middle of a picture that is still `OVERSAMPLING` times too large."""
    scale = FILL_FRACTION * OVERSAMPLING * side / max(ink.size)
    width, height = (max(1, round(length * scale)) for length in ink.size)
    small = ink.resize((width, height), Image.Resampling.BOX)
    frame = Image.new("L", (OVERSAMPLING * side, OVERSAMPLING * side))
    frame.paste(small, ((OVERSAMPLING * side - width) // 2, (OVERSAMPLING * side - height) // 2))
    return frame


def _varied(frame: Image.Image, count: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Copies of a picture, each turned, made smaller and sprinkled with noise in its own way."""
    angles = rng.uniform(-MAX_DEGREES, MAX_DEGREES, count)
    sizes = rng.uniform(MIN_SCALE, 1.0, count)
    clean = np.stack([_turned(frame, *pair) for pair in zip(angles, sizes, strict=True)])
    noisy = clean + rng.normal(0.0, NOISE_STD, clean.shape)
    return noisy.round().clip(0, 255).astype(np.uint8)


def _turned(frame: Image.Image, degrees: float, size: float) -> NDArray[np.uint8]:
    """The picture turned around its centre, at this part of its size, and averaged down."""
    along, across = (f(np.radians(degrees)) / size for f in (np.cos, np.sin))
    centre = frame.width / 2
    shifts = centre * (1 - along - across), centre * (1 - along + across)
    matrix = (along, across, shifts[0], -across, along, shifts[1])
    turned = frame.transform(frame.size, Image.Transform.AFFINE, matrix, Image.Resampling.BICUBIC)
    return np.asarray(turned.reduce(OVERSAMPLING))
