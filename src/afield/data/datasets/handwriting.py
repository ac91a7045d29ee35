"""Handwriting: 42 Sanskrit characters by 20 writers, 840 drawings; the writers are the domains.

Lake, Salakhutdinov and Tenenbaum, Human-level concept learning through probabilistic program
induction, Science 350, 2015 (Omniglot). Every writer drew every character of an alphabet once. The
alphabet is Sanskrit because its script is Devanagari, whose handwriting Shankar et al.
(Generalizing Across Domains via Cross-Gradient Training, ICLR 2018) recognize; they use 111
characters by 74 writers from another dataset, LipiTk.

In the data root: ``omniglot/images_background`` or ``omniglot/images_background_small2``, as a
folder or as the published .zip, which is read without unpacking. License: MIT.

Drawings have 105 × 105 pixels, black on white. They are read as 32 × 32 gray values, white on
black, like the other characters here.
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

from afield.data.domains import Domain, DomainSet, Download, ReadOptions
from afield.data.downloads import Archive
from afield.data.training_settings import Training
from afield.errors import DataError

__all__ = ["handwriting"]

ALPHABET, CHARACTERS, WRITERS = "Sanskrit", 42, 20
NAMES = tuple(f"writer{number:02}" for number in range(1, WRITERS + 1))
FOLDER = "omniglot"
PATHS = tuple(
    f"{FOLDER}/{name}{end}"
    for end in ("", ".zip")
    for name in ("images_background", "images_background_small2")
)
# Groups: number of the character, number of the writer.
DRAWING = re.compile(rf"{ALPHABET}/character(\d\d)/\d{{4}}_(\d\d)\.png$")
ORIGINAL_SIZE, SIDE = (105, 105), 32
# A drawing has about 300 bytes; a much larger file is not a drawing.
MAX_BYTES = 10_000
READ_ERRORS = (OSError, ValueError, SyntaxError, RuntimeError, EOFError, BadZipFile, zlib.error)

DOWNLOAD = Download(
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
    """Dataset with the files in this data root."""
    return DomainSet(
        name="handwriting",
        domains=NAMES,
        classes=tuple(f"character{number:02}" for number in range(1, CHARACTERS + 1)),
        reader=_read,
        # There are few drawings: without augmentation, half as many are recognized.
        training=Training(steps=1000, batch=8, lr=3e-3, augment="light", domains_per_step=8),
        needs=(_find_path(root),),
        download=DOWNLOAD,
        sizes=dict.fromkeys(NAMES, CHARACTERS),
    )


def _find_path(root: Path) -> str:
    """First path that exists; if none does, the one that the download creates."""
    return next((path for path in PATHS if (root / path).exists()), PATHS[0])


def _read(options: ReadOptions) -> dict[str, Domain]:
    path = drawing = options.root / _find_path(options.root)
    images: dict[tuple[int, int], NDArray[np.uint8]] = {}
    try:
        for name, size, read_bytes in _drawings(path):
            drawing = path / name
            if size > MAX_BYTES:
                raise ValueError(f"{size:,} bytes, too many for a drawing")
            images[_writer_and_character(name)] = _decode(read_bytes())
    except READ_ERRORS as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"{drawing}: {reason}; delete {path.name} and download it again") from None
    domains = {}
    for writer, name in enumerate(NAMES):
        labels = [character for character in range(CHARACTERS) if (writer, character) in images]
        x = np.array([images[writer, character] for character in labels], np.uint8)
        domains[name] = Domain(
            x=torch.from_numpy(x).view(-1, 1, SIDE, SIDE),
            y=torch.tensor(labels, dtype=torch.int64),
        )
    return domains


def _drawings(path: Path) -> Iterator[tuple[str, int, Callable[[], bytes]]]:
    """Name, size and reading function of every drawing in a folder or a zip archive."""
    if path.is_dir():
        for file in sorted(path.glob(f"{ALPHABET}/*/*.png")):
            yield file.relative_to(path).as_posix(), file.stat().st_size, file.read_bytes
        return
    with ZipFile(path) as archive:
        for info in archive.infolist():
            if f"/{ALPHABET}/" in info.filename and info.filename.endswith(".png"):
                yield info.filename, info.file_size, partial(archive.read, info)


def _writer_and_character(name: str) -> tuple[int, int]:
    """Indices of the writer and the character, from the name of a drawing."""
    match = DRAWING.search(name)
    character, writer = (int(number) - 1 for number in match.groups()) if match else (-1, -1)
    if not 0 <= character < CHARACTERS or not 0 <= writer < WRITERS:
        raise ValueError("not a drawing of this dataset")
    return writer, character


def _decode(content: bytes) -> NDArray[np.uint8]:
    with Image.open(BytesIO(content), formats=["PNG"]) as image:
        if image.size != ORIGINAL_SIZE:
            raise ValueError(f"{image.width} × {image.height} pixels instead of 105 × 105")
        small = image.convert("L").resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    return 255 - np.asarray(small)
