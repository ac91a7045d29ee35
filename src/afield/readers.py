"""A user's own data: folders of pictures, and arrays. Everything is checked before training.

root/<domain>/<class>/<image>     png, jpg, jpeg, bmp, webp, tif, tiff
file.npz with X, y, domain        X: samples × features, or samples × (channels ×) height × width
"""

import hashlib
import zlib
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from afield import catalog
from afield.domains import Domain, DomainSet, Training
from afield.errors import DataError, UnknownNameError

__all__ = ["array_file", "find_dataset", "image_folder"]

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff")
SIDE = 64
CHANNELS = (1, 3, 4)
DEEP = ("I;16", "I;16L", "I;16B", "I", "F")
# Left behind by operating systems; hidden files are passed over as well.
CLUTTER = ("thumbs.db", "desktop.ini")

Files = Mapping[str, list[tuple[Path, int]]]


def find_dataset(spec: str | Path) -> DomainSet:
    """A dataset by its name, or a user's own by the path of a folder or an ``.npz`` file.

    >>> find_dataset("rotated_digits").domains[:2]
    ('0deg', '15deg')
    """
    name = str(spec)
    if name in catalog.names("datasets"):
        return replace(catalog.find("datasets", name), name=name)
    try:
        path = Path(name).expanduser()
        exists = bool(name) and path.exists()
    except (OSError, RuntimeError) as error:
        raise DataError(f"no file or folder {name!r} ({error})") from None
    if exists:
        return image_folder(path) if path.is_dir() else array_file(path)
    if "/" in name or "." in name:
        raise DataError(f"no file or folder {name}; give root/<domain>/<class>/<image> or an .npz")
    known = catalog.hint(name, catalog.names("datasets"))
    raise UnknownNameError(f"no dataset and no file or folder called {name!r}; {known}")


def image_folder(path: Path) -> DomainSet:
    """``root/<domain>/<class>/<image>``; domains and classes are read off the tree."""
    path = path.resolve()
    stray = [file for file in _files(path) if file.suffix.lower() in SUFFIXES]
    if stray:
        raise DataError(f"{stray[0]}: outside a domain folder; move it to <domain>/<class>")
    tree = {folder.name: _classes(folder) for folder in _folders(path)}
    if len(tree) < 2:
        raise DataError(
            f"{path}: {len(tree)} domain folder(s); leaving one out takes at least two "
            "(root/<domain>/<class>/<image>)"
        )
    for domain, labels in tree.items():
        if not any(labels.values()):
            raise DataError(f"{path / domain}: no picture in this domain; add some or remove it")
    classes = tuple(sorted({label for labels in tree.values() for label in labels}))
    if len(classes) < 2:
        raise DataError(f"{path}: only class {classes[0]!r}; a classifier needs two")
    files = {
        domain: [(file, classes.index(label)) for label in labels for file in labels[label]]
        for domain, labels in tree.items()
    }
    states = [(file, file.stat()) for domain in files.values() for file, _ in domain]
    listing = tuple((str(file), state.st_size, state.st_mtime_ns) for file, state in states)
    return DomainSet(
        name=path.name,
        domains=tuple(files),
        classes=classes,
        reader=partial(_read_pictures, files),
        origin=str(path),
        fingerprint=_contents(path, listing),
    )


@lru_cache(maxsize=2)
def _contents(root: Path, listing: tuple[tuple[str, int, int], ...]) -> str:
    """A digest of names and contents, read once for files in one state."""
    digest = hashlib.sha256()
    for file, size, _ in listing:
        digest.update(f"{Path(file).relative_to(root)} {size} ".encode())
        digest.update(Path(file).read_bytes())
    return digest.hexdigest()[:16]


def array_file(path: Path) -> DomainSet:
    """An ``.npz`` file with arrays X, y and domain; nothing in it is ever unpickled."""
    path = path.resolve()
    state = path.stat()
    return _array_file(path, (state.st_size, state.st_mtime_ns))


@lru_cache(maxsize=1)
def _array_file(path: Path, state: tuple[int, int]) -> DomainSet:
    """The same, for a file in this state: it is not read and checked again for every run."""
    del state
    arrays = _arrays(path)
    names, classes = (_labels(arrays[key]) for key in ("domain", "y"))
    if len(names) < 2:
        raise DataError(f"{path}: all samples are of domain {names[0]!r}; two are the least")
    if len(classes) < 2:
        raise DataError(f"{path}: all samples are of class {classes[0]!r}; two are the least")
    return DomainSet(
        name=path.stem,
        domains=names,
        classes=classes,
        reader=partial(_read_arrays, path, names, classes),
        training=Training(batch=32, backbone="small:mlp" if arrays["X"].ndim == 2 else "small:cnn"),
        origin=str(path),
        fingerprint=hashlib.sha256(path.read_bytes()).hexdigest()[:16],
    )


def _folders(path: Path) -> list[Path]:
    return sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))


def _classes(domain: Path) -> dict[str, list[Path]]:
    stray = [p for p in _files(domain) if p.suffix.lower() in SUFFIXES]
    if stray:
        raise DataError(f"{stray[0]}: outside a class folder; move it to {domain}/<class>")
    found = {folder.name: _files(folder) for folder in _folders(domain)}
    deeper = [inner for folder in _folders(domain) for inner in _folders(folder)]
    if deeper:
        raise DataError(f"{deeper[0]}: a folder inside a class folder; move its pictures up")
    for file in (file for files in found.values() for file in files):
        if file.suffix.lower() not in SUFFIXES:
            raise DataError(f"{file}: not an image ({', '.join(SUFFIXES)}); move it elsewhere")
    return found


def _files(folder: Path) -> list[Path]:
    def wanted(path: Path) -> bool:
        name = path.name.lower()
        return path.is_file() and not name.startswith(".") and name not in CLUTTER

    return sorted(path for path in folder.iterdir() if wanted(path))


def _read_pictures(files: Files, root: Path) -> dict[str, Domain]:
    del root
    broken: dict[Path, str] = {}
    everything = [file for domain in files.values() for file, _ in domain]
    pictures = {f: picture for f in everything if (picture := _tried(f, broken)) is not None}
    if broken:
        told = "; ".join(f"{file} ({reason})" for file, reason in list(broken.items())[:5])
        more = f" and {len(broken) - 5} more" if len(broken) > 5 else ""
        raise DataError(f"not an image, or a broken one: {told}{more}; remove or replace")
    return {
        name: Domain(
            x=torch.from_numpy(np.stack([pictures[file] for file, _ in domain])),
            y=torch.tensor([label for _, label in domain]),
        )
        for name, domain in files.items()
    }


def _tried(file: Path, broken: dict[Path, str]) -> NDArray[np.uint8] | None:
    """The picture; a file that cannot be read is put down as broken."""
    try:
        return _picture(file)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        broken[file] = (str(error).splitlines() or ["unreadable"])[0]
        return None


def _picture(file: Path) -> NDArray[np.uint8]:
    """The picture as 3 × side × side.

    One form for all, whatever the files are like: a form chosen by looking at them would let the
    unseen domain's pictures have a say in the training.
    """
    with Image.open(file) as image:
        plain = _eight_bits(image)
        # Transparency of a palette is only understood on the way to RGBA.
        plain = (plain.convert("RGBA") if plain.mode == "P" else plain).convert("RGB")
    small = plain.resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    return np.asarray(small).transpose(2, 0, 1)


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


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            have = archive.files if isinstance(archive, np.lib.npyio.NpzFile) else []
            missing = [key for key in ("X", "y", "domain") if key not in have]
            arrays = {} if missing else {key: archive[key] for key in ("X", "y", "domain")}
    except (ValueError, EOFError, OSError, BadZipFile, zlib.error):
        reason = "not an .npz of plain arrays, or a broken one (nothing is unpickled: save"
        raise DataError(f"{path}: {reason} arrays of objects with .astype(str))") from None
    if missing:
        told = ", ".join(have) or "no named arrays"
        raise DataError(f"{path}: no array {', '.join(missing)}; it has {told}")
    _check_arrays(path, arrays)
    return arrays


def _check_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    lengths = {key: len(array) if array.ndim else 0 for key, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{key} {length}" for key, length in lengths.items())
        raise DataError(f"{path}: arrays of unequal length ({told}); one entry a sample is needed")
    if not lengths["X"]:
        raise DataError(f"{path}: no samples")
    x = arrays["X"]
    if x.dtype.kind not in "fiub" or x.ndim not in (2, 3, 4) or not x.size:
        raise DataError(
            f"{path}: X is {x.dtype} of shape {x.shape}; numbers are needed, "
            "samples × features or samples × (channels ×) height × width"
        )
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        bad = np.flatnonzero(~np.isfinite(x).reshape(len(x), -1).all(axis=1))
        raise DataError(
            f"{path}: NaN or infinity in X, {len(bad)} sample(s), first {bad[0]}; "
            "remove or fill such samples"
        )
    for key in ("y", "domain"):
        if arrays[key].ndim != 1 or arrays[key].dtype.kind not in "iubUS":
            raise DataError(
                f"{path}: {key} is {arrays[key].dtype} of shape {arrays[key].shape}; "
                "one whole number or name a sample is needed"
            )


def _labels(array: NDArray[Any]) -> tuple[str, ...]:
    return tuple(str(value) for value in np.unique(_text(array)).tolist())


def _text(array: NDArray[Any]) -> NDArray[Any]:
    return np.char.decode(array, "utf-8", "replace") if array.dtype.kind == "S" else array


def _read_arrays(
    path: Path, names: tuple[str, ...], classes: tuple[str, ...], root: Path
) -> dict[str, Domain]:
    del root
    arrays = _arrays(path)
    x = _channels_first(arrays["X"])
    y = torch.from_numpy(np.unique(_text(arrays["y"]), return_inverse=True)[1])
    domain = np.unique(_text(arrays["domain"]), return_inverse=True)[1]
    if (_labels(arrays["domain"]), _labels(arrays["y"])) != (names, classes):
        raise DataError(f"{path}: the file has changed since it was opened; start again")
    rows = [torch.from_numpy(np.flatnonzero(domain == i)) for i in range(len(names))]
    return {name: Domain(x[index], y[index]) for name, index in zip(names, rows, strict=True)}


def _channels_first(x: NDArray[Any]) -> Tensor:
    """Pictures as samples × channels × height × width, bytes as they are, all else as float32."""
    if x.ndim == 3:
        x = x[:, None]
    elif x.ndim == 4 and x.shape[-1] in CHANNELS and x.shape[1] not in CHANNELS:
        x = x.transpose(0, 3, 1, 2)
    kept = np.uint8 if x.dtype == np.uint8 and x.ndim == 4 else np.float32
    return torch.from_numpy(np.ascontiguousarray(x, dtype=kept))
