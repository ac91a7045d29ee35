"""Datasets of fonts: every font in a folder is a domain, the characters are the classes."""

from functools import partial
from pathlib import Path

import numpy as np

from afield.data.cache import Arrays, cache_arrays, contents_digest
from afield.data.domains import Domain, DomainSet, ReadOptions, Training
from afield.data.glyphs import CHARACTERS, FONT_SUFFIXES, draw_glyphs
from afield.errors import DataError
from afield.progress import track
from afield.seeds import derive_seed

__all__ = ["font_dataset", "is_font"]

SIDE = 32
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
