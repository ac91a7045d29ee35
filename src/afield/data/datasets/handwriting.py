"""Handwriting: 42 Sanskrit characters by 20 writers, 840 drawings; the writers are the domains.

Lake, Salakhutdinov and Tenenbaum, Human-level concept learning through probabilistic program
induction, Science 350, 2015 (Omniglot). Every writer drew every character of an alphabet once.
Sanskrit is the one in Devanagari script, in which Shankar et al. (Generalizing Across Domains via
Cross-Gradient Training, ICLR 2018) recognise handwriting; they have 111 characters by 74 writers
of LipiTk, another set.

Under the data root: ``omniglot/``, and in it ``images_background`` or ``images_background_small2``,
as a folder or as the .zip that it comes in, which is read without unpacking. Licence: MIT.

Drawings are 105 × 105 pixels, black on white. They are read as 32 × 32 grey levels, white on black
like the other characters here.
"""

import re
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from io import BytesIO
from pathlib import Path
from zipfile import BadZipFile, ZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from afield.data.domains import Domain, DomainSet, Download, ReadOptions, Training
from afield.data.downloads import Archive
from afield.errors import DataError

__all__ = ["handwriting"]

ALPHABET, CHARACTERS, WRITERS = "Sanskrit", 42, 20
NAMES = tuple(f"writer{number:02}" for number in range(1, WRITERS + 1))
FOLDER = "omniglot"
PLACES = tuple(
    f"{FOLDER}/{name}{end}"
    for end in ("", ".zip")
    for name in ("images_background", "images_background_small2")
)
# The numbers of the character and of the writer.
DRAWING = re.compile(rf"{ALPHABET}/character(\d\d)/\d{{4}}_(\d\d)\.png$")
DRAWN, SIDE = (105, 105), 32
# A drawing has some 300 bytes; what has many more is none.
LARGEST = 10_000
BROKEN = (OSError, ValueError, SyntaxError, RuntimeError, EOFError, BadZipFile, zlib.error)

SOURCE = Download(
    archives=(
        Archive(
            url="https://raw.githubusercontent.com/brendenlake/omniglot/master/python/"
            "images_background.zip",
            checksum="md5:68d2efa1b9178cc56df9314c21c6e718",
            size=9_464_212,
            folder=FOLDER,
        ),
    ),
    license="MIT",
)


def handwriting(root: Path) -> DomainSet:
    """The dataset for this root of all data."""
    return DomainSet(
        name="handwriting",
        domains=NAMES,
        classes=tuple(f"character{number:02}" for number in range(1, CHARACTERS + 1)),
        reader=_read,
        # Crops and contrast vary the few drawings: without them half as many are recognised.
        training=Training(steps=1000, batch=8, lr=3e-3, augment="light", domains_per_step=8),
        needs=(_place(root),),
        download=SOURCE,
        sizes=dict.fromkeys(NAMES, CHARACTERS),
    )


def _place(root: Path) -> str:
    """The first place that has the drawings; if there is none, where they will be once fetched."""
    return next((place for place in PLACES if (root / place).exists()), PLACES[0])


def _read(reading: ReadOptions) -> dict[str, Domain]:
    place = where = reading.root / _place(reading.root)
    grey: dict[tuple[int, int], NDArray[np.uint8]] = {}
    try:
        for name, size, content in _drawings(place):
            where = place / name
            if size > LARGEST:
                raise ValueError(f"{size:,} bytes, too many for a drawing")
            grey[_writer_and_character(name)] = _grey(content())
    except BROKEN as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"{where}: {reason}; remove {place.name} and get it again") from None
    domains = {}
    for writer, name in enumerate(NAMES):
        drawn = [character for character in range(CHARACTERS) if (writer, character) in grey]
        x = np.array([grey[writer, character] for character in drawn], np.uint8)
        domains[name] = Domain(
            x=torch.from_numpy(x).view(-1, 1, SIDE, SIDE),
            y=torch.tensor(drawn, dtype=torch.int64),
        )
    return domains


def _drawings(place: Path) -> Iterator[tuple[str, int, Callable[[], bytes]]]:
    """Name, size and content of every drawing in a folder or an archive."""
    if place.is_dir():
        for file in sorted(place.glob(f"{ALPHABET}/*/*.png")):
            yield file.relative_to(place).as_posix(), file.stat().st_size, file.read_bytes
        return
    with ZipFile(place) as archive:
        for info in archive.infolist():
            if f"/{ALPHABET}/" in info.filename and info.filename.endswith(".png"):
                yield info.filename, info.file_size, partial(archive.read, info)


def _writer_and_character(name: str) -> tuple[int, int]:
    """Both counted from 0."""
    found = DRAWING.search(name)
    character, writer = (int(number) - 1 for number in found.groups()) if found else (-1, -1)
    if not 0 <= character < CHARACTERS or not 0 <= writer < WRITERS:
        raise ValueError("not a drawing of this dataset")
    return writer, character


def _grey(content: bytes) -> NDArray[np.uint8]:
    with Image.open(BytesIO(content), formats=["PNG"]) as image:
        if image.size != DRAWN:
            raise ValueError(f"{image.width} × {image.height} pixels instead of 105 × 105")
        small = image.convert("L").resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    return 255 - np.asarray(small)
