"""Fonts: 36 characters drawn in every font of a folder; the fonts are the domains.

After Shankar, Piratla, Chakrabarti, Chaudhuri, Jyothi and Sarawagi, Generalizing Across Domains via
Cross-Gradient Training, ICLR 2018, who took 109 handwriting fonts of Google Fonts and did not
publish which. Capital letters and digits are the classes, two to eighteen pictures of 32 × 32 of
each character and font, turned, scaled and with noise; `afield.data.glyphs` says how, and where
that differs from the paper.

Under the data root: ``fonts/``, any .ttf, .otf, .woff or .woff2 files, one a font, two at the
least. A font is known by its file's name and contents, so results of different folders are told
apart. Licence: each font's own.
"""

from dataclasses import replace
from pathlib import Path

from afield.data.domains import Domain, DomainSet, Download, ReadOptions
from afield.data.glyphs import CHARACTERS
from afield.data.sources.fonts import font_dataset
from afield.errors import DataError

__all__ = ["fonts"]

FOLDER = "fonts"
SOURCE = Download(
    instructions="make it and put font files (.ttf, .otf, .woff, .woff2) into it, at least two; "
    "the "
    "paper's are of https://fonts.google.com/?category=Handwriting&subset=latin",
    license="each font's own",
)


def fonts(root: Path) -> DomainSet:
    """The dataset for this root of all data."""
    folder = root / FOLDER
    if not folder.is_dir():
        return DomainSet(
            name="fonts",
            domains=(),
            classes=CHARACTERS,
            reader=_read_nothing,
            needs=(FOLDER,),
            download=SOURCE,
        )
    found = font_dataset(folder)
    return replace(found, name="fonts", origin="", needs=(FOLDER,), download=SOURCE)


def _read_nothing(reading: ReadOptions) -> dict[str, Domain]:
    raise DataError(f"{reading.root / FOLDER}: was not there at first; start again")
