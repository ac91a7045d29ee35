"""Made-up digits in the files of MNIST, and where the real ones are."""

import gzip
import struct
from math import sqrt
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from torch import Tensor

from afield.data.domains import data_root

RAW = Path("MNIST", "raw")
# Tests run on made-up digits, and where the real ones are, on these as well.
KINDS = ["made-up", pytest.param("real", marks=[pytest.mark.data, pytest.mark.slow])]
REAL_FILES = [
    RAW / f"{part}-{kind}-ubyte.gz"
    for part in ("train", "t10k")
    for kind in ("images-idx3", "labels-idx1")
]


def idx(array: NDArray[np.uint8]) -> bytes:
    """What an idx file of these bytes is."""
    sizes = struct.pack(f">{array.ndim}I", *array.shape)
    return bytes((0, 0, 8, array.ndim)) + sizes + array.tobytes()


def digits(count: int, *, seed: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Noise in a frame of black, as MNIST has it; the digits come alike, in no order."""
    rng = np.random.default_rng(seed)
    images = np.zeros((count, 28, 28), np.uint8)
    images[:, 4:-4, 4:-4] = rng.integers(0, 256, (count, 20, 20))
    return images, rng.permutation(np.arange(count) % 10).astype(np.uint8)


def made_up_mnist(root: Path, *, train: int, t10k: int, packed: bool = True) -> Path:
    """The four files, with so many digits in the two parts."""
    (root / RAW).mkdir(parents=True)
    for number, (part, count) in enumerate({"train": train, "t10k": t10k}.items()):
        images, labels = digits(count, seed=number)
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            name = f"{part}-{kind}-ubyte"
            content = gzip.compress(idx(array), 1) if packed else idx(array)
            (root / RAW / (f"{name}.gz" if packed else name)).write_bytes(content)
    return root


def real_mnist() -> Path:
    """The root of all data, or a skipped test."""
    root = data_root()
    if not all((root / file).is_file() for file in REAL_FILES):
        pytest.skip(f"no MNIST in {root / RAW}; AFIELD_DATA names the folder with MNIST/raw")
    return root


def assert_rate(hits: Tensor, expected: float) -> None:
    """The share of true values is as expected, within four standard errors."""
    error = sqrt(expected * (1 - expected) / len(hits))
    assert hits.float().mean().item() == pytest.approx(expected, abs=4 * error)


def root_of(kind: str, folder: Path, *, train: int, t10k: int) -> Path:
    """A root with made-up digits in a folder, or the one with the real ones."""
    return real_mnist() if kind == "real" else made_up_mnist(folder, train=train, t10k=t10k)
