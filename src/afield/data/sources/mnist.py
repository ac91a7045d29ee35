"""MNIST in its four published idx files, compressed or not; and rotated digits.

    MNIST/raw/{train,t10k}-{images-idx3,labels-idx1}-ubyte    each with or without .gz

An idx file begins with four bytes (two zeros, 8 for the type uint8, and the number of dimensions),
followed by the dimensions as big-endian integers of four bytes, and the values. Checksums of
compressed copies differ, so the contents are checked instead.

LeCun, Bottou, Bengio and Haffner, Gradient-based learning applied to document recognition,
Proceedings of the IEEE, 1998.
"""

import gzip
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from afield.data.domains import Download
from afield.data.downloads import Archive
from afield.errors import DataError
from afield.files import check_regular_file

FOLDER = "MNIST/raw"
MIRRORS = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/")
# Sizes and MD5 checksums of the compressed files, as in torchvision.
PACKED_FILES = {
    "train-images-idx3-ubyte": (9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
    "train-labels-idx1-ubyte": (28_881, "d53e105ee54ea40749a09fcbcd1e9432"),
    "t10k-images-idx3-ubyte": (1_648_877, "9fb629c4189551a2d022fa330f9573f3"),
    "t10k-labels-idx1-ubyte": (4_542, "ec29112dd5afa0611ce80d1b7f02629c"),
}
SPLITS = ("train", "t10k")
SIDE, CLASSES = 28, 10
IDX_MAGIC = b"\0\0\x08"
# A broken header may declare more, which would fill the memory.
MAX_BYTES = 2**30

MNIST_DOWNLOAD = Download(
    archives=tuple(
        Archive(
            url=f"{MIRRORS[0]}{name}.gz",
            checksum=f"md5:{digest}",
            size=size,
            folder=FOLDER,
            mirrors=(f"{MIRRORS[1]}{name}.gz",),
        )
        for name, (size, digest) in PACKED_FILES.items()
    )
)


def mnist_files(root: Path, splits: Sequence[str] = SPLITS) -> tuple[str, ...]:
    """Paths of the files of these splits below the data root; ``.gz`` unless decompressed."""
    plain = [f"{FOLDER}/{name}" for name in PACKED_FILES if name.startswith(tuple(splits))]
    return tuple(name if (root / name).exists() else f"{name}.gz" for name in plain)


def read_mnist(root: Path, splits: Sequence[str] = SPLITS) -> tuple[Tensor, Tensor]:
    """Images (uint8, samples × 28 × 28) and digits of these splits, concatenated."""
    files = [root / name for name in mnist_files(root, splits)]
    images, digits = [], []
    for image_file, label_file in zip(files[::2], files[1::2], strict=True):
        x, y = read_idx(image_file), read_idx(label_file)
        if x.shape[1:] != (SIDE, SIDE):
            raise DataError(
                f"{image_file}: shape {x.shape}, not images of 28 × 28; download it again"
            )
        if y.shape != x.shape[:1] or y.max(initial=0) >= CLASSES:
            raise DataError(
                f"{label_file}: not a digit for each of {len(x)} images; download both files again"
            )
        images.append(torch.from_numpy(x))
        digits.append(torch.from_numpy(y.astype(np.int64)))
    return torch.cat(images), torch.cat(digits)


def rotate_images(images: Tensor, degrees: float) -> Tensor:
    """Rotate gray images counterclockwise about their center; new pixels are black.

    Uses Pillow's bilinear rotation, image by image. The bytes are those of torchvision's rotation
    of Pillow images, which differ from its rotation of tensors.
    """
    rotated = [
        np.asarray(Image.fromarray(image).rotate(degrees, Image.Resampling.BILINEAR))
        for image in images.numpy()
    ]
    return torch.from_numpy(np.stack(rotated)) if rotated else images.clone()


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read the array in an idx file of bytes; the name of a compressed file ends in ``.gz``."""
    try:
        check_regular_file(path)
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return _parse_idx(file)
    except ValueError as error:
        reason = str(error)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        reason = "broken or truncated"
    except OSError as error:
        reason = error.strerror or str(error)
    raise DataError(f"{path}: {reason}; delete it and download it again")


def _parse_idx(file: BinaryIO | gzip.GzipFile) -> NDArray[np.uint8]:
    magic = file.read(4)
    if len(magic) < 4 or magic[:3] != IDX_MAGIC or magic[3] not in (1, 2, 3):
        start = magic.hex(" ") or "nothing"
        raise ValueError(f"not an idx file of bytes (it starts with {start})")
    sizes = file.read(4 * magic[3])
    if len(sizes) < 4 * magic[3]:
        raise ValueError("ends in its header")
    shape = struct.unpack(f">{magic[3]}I", sizes)
    expected = int(np.prod(shape, dtype=object))
    if expected > MAX_BYTES:
        raise ValueError(f"its header declares {expected:,} bytes")
    content = file.read(expected + 1)
    if len(content) != expected:
        actual = f"{len(content):,}" if len(content) < expected else "more"
        raise ValueError(f"{actual} bytes instead of {expected:,}")
    # A copy, because an array on bytes is read-only.
    return np.frombuffer(content, np.uint8).reshape(shape).copy()
