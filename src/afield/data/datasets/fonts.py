"""Fonts: 36 characters drawn in every font of a folder; the fonts are the domains.

After Shankar, Piratla, Chakrabarti, Chaudhuri, Jyothi and Sarawagi, Generalizing Across Domains via
Cross-Gradient Training, ICLR 2018, who used 109 handwriting fonts of Google Fonts and did not
publish their names. The classes are capital letters and digits, with 2 to 18 images of 32 × 32 of
each character in each font: rotated, scaled and with noise. `afield.data.sources.fonts` describes
how, and where that differs from the paper.

In the data root: ``fonts/`` with at least two .ttf, .otf, .woff or .woff2 files, one per font.
Results depend on the names and contents of these files, so different folders have different
results. License: that of each font.
"""

from dataclasses import replace
from pathlib import Path

from afield.data.domains import Domain, DomainSet, Download, Published, ReadOptions
from afield.data.sources.fonts import CHARACTERS, font_dataset
from afield.errors import DataError

__all__ = ["fonts"]

FOLDER = "fonts"
PUBLISHED = Published(13_718, domains=109)
DOWNLOAD = Download(
    instructions="create the folder fonts in the data root and put at least two font files (.ttf, "
    ".otf, .woff, .woff2) into it; those of the paper are from "
    "https://fonts.google.com/?category=Handwriting&subset=latin",
    license="that of each font",
)


def fonts(root: Path) -> DomainSet:
    """Dataset with the fonts in this data root."""
    folder = root / FOLDER
    if not folder.is_dir():
        return DomainSet(
            name="fonts",
            domains=(),
            classes=CHARACTERS,
            reader=_read_nothing,
            needs=(FOLDER,),
            download=DOWNLOAD,
            published=PUBLISHED,
        )
    dataset = font_dataset(folder)
    return replace(dataset, name="fonts", origin="", needs=(FOLDER,), download=DOWNLOAD)


def _read_nothing(options: ReadOptions) -> dict[str, Domain]:
    raise DataError(f"{options.root / FOLDER}: created only after the start; start again")
