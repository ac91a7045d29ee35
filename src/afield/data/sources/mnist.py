"""MNIST as it is published: four idx files, packed or not, read and checked; and its digits turned.

    MNIST/raw/{train,t10k}-{images-idx3,labels-idx1}-ubyte    each with or without .gz

An idx file is a kind (two zeros, 8 for bytes, the number of dimensions), the dimensions as
big-endian numbers of four bytes, and the values. Packed copies differ in their checksums, so what
is checked here is what is inside. LeCun, Bottou, Bengio and Haffner, Gradient-based learning
applied to document recognition, Proceedings of the IEEE, 1998.
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

__all__ = ["MNIST_DOWNLOAD", "mnist_files", "read_idx", "read_mnist", "rotate_images"]

FOLDER = "MNIST/raw"
MIRRORS = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/")
# Bytes and checksums of the packed files, as torchvision knows them.
PACKED_FILES = {
    "train-images-idx3-ubyte": (9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
    "train-labels-idx1-ubyte": (28_881, "d53e105ee54ea40749a09fcbcd1e9432"),
    "t10k-images-idx3-ubyte": (1_648_877, "9fb629c4189551a2d022fa330f9573f3"),
    "t10k-labels-idx1-ubyte": (4_542, "ec29112dd5afa0611ce80d1b7f02629c"),
}
SPLITS = ("train", "t10k")
SIDE, CLASSES = 28, 10
IDX_MAGIC = b"\0\0\x08"
# A broken header that promises more would have us fill the memory.
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
    """The files of some parts by their paths under the root of all data, packed unless unpacked."""
    plain = [f"{FOLDER}/{name}" for name in PACKED_FILES if name.startswith(tuple(splits))]
    return tuple(name if (root / name).exists() else f"{name}.gz" for name in plain)


def read_mnist(root: Path, splits: Sequence[str] = SPLITS) -> tuple[Tensor, Tensor]:
    """Images (bytes, samples × 28 × 28) and digits of some parts, one after the other."""
    files = [root / name for name in mnist_files(root, splits)]
    images, digits = [], []
    for image_file, label_file in zip(files[::2], files[1::2], strict=True):
        x, y = read_idx(image_file), read_idx(label_file)
        if x.shape[1:] != (SIDE, SIDE):
            raise DataError(f"{image_file}: holds {x.shape}, not images of 28 × 28; get it again")
        if y.shape != x.shape[:1] or y.max(initial=0) >= CLASSES:
            told = f"not one digit for each of {len(x)} images"
            raise DataError(f"{label_file}: {told}; get both files again")
        images.append(torch.from_numpy(x))
        digits.append(torch.from_numpy(y.astype(np.int64)))
    return torch.cat(images), torch.cat(digits)


def rotate_images(images: Tensor, degrees: float) -> Tensor:
    """Grey images turned counter-clockwise about their centre, black where nothing was.

    Pillow's bilinear rotation, image by image: it is what torchvision does with pictures, byte for
    byte, which torchvision's own rotation of tensors is not.
    """
    done = [
        np.asarray(Image.fromarray(image).rotate(degrees, Image.Resampling.BILINEAR))
        for image in images.numpy()
    ]
    return torch.from_numpy(np.stack(done)) if done else images.clone()


def read_idx(path: Path) -> NDArray[np.uint8]:
    """The bytes in an idx file, in its shape; a packed file ends in ``.gz``."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return _values(file)
    except ValueError as error:
        reason = str(error)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        reason = "broken or cut short"
    except OSError as error:
        reason = error.strerror or str(error)
    raise DataError(f"{path}: {reason}; remove it and get it again")


def _values(file: BinaryIO | gzip.GzipFile) -> NDArray[np.uint8]:
    kind = file.read(4)
    if len(kind) < 4 or kind[:3] != IDX_MAGIC or kind[3] not in (1, 2, 3):
        raise ValueError(f"not an idx file of bytes (it starts with {kind.hex(' ') or 'nothing'})")
    sizes = file.read(4 * kind[3])
    if len(sizes) < 4 * kind[3]:
        raise ValueError("ends in its header")
    shape = struct.unpack(f">{kind[3]}I", sizes)
    promised = int(np.prod(shape, dtype=object))
    if promised > MAX_BYTES:
        raise ValueError(f"its header promises {promised:,} bytes")
    content = file.read(promised + 1)
    if len(content) != promised:
        found = f"{len(content):,}" if len(content) < promised else "more"
        raise ValueError(f"{found} bytes instead of {promised:,}")
    # A copy, since what was read is not to be written to.
    return np.frombuffer(content, np.uint8).reshape(shape).copy()
