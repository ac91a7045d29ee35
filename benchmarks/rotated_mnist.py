"""Rotated MNIST in other constructions, to find out what the accuracy at the end angles depends on.

    python benchmarks/rotated_mnist.py same5k.npz --per-class 500
    afield bench same5k.npz --methods erm --targets 0deg,75deg --set report=whole

The defaults are those of `rotated_mnist_1k`: the same 100 digits of every class at six angles,
bilinear, 28 × 28. MNIST is in the data root (AFIELD_DATA).
"""

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from afield.data.domains import data_root
from afield.data.sources.mnist import read_mnist
from afield.seeds import derive_seed

ANGLES = (0, 15, 30, 45, 60, 75)
CLASSES = 10


def rows_of(digits: NDArray[np.int64], per_class: int, skip: int) -> NDArray[np.intp]:
    """Digits of all classes, in the order in which `rotated_mnist_1k` draws them."""
    order = np.random.default_rng(derive_seed("rotated_mnist_1k")).permutation(len(digits))
    of_class = (order[digits[order] == digit] for digit in range(CLASSES))
    return np.concatenate([rows[skip : skip + per_class] for rows in of_class])


def rotated(
    image: NDArray[np.uint8], degrees: float, asked: argparse.Namespace
) -> NDArray[np.uint8]:
    """An image, rotated counterclockwise and resized."""
    picture = Image.fromarray(image).rotate(degrees, Image.Resampling[asked.resampling])
    return np.asarray(picture.resize((asked.size, asked.size), Image.Resampling.BILINEAR))


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--per-class", type=int, default=100)
    parser.add_argument("--skip", type=int, default=0, help="other digits: skip so many per class")
    parser.add_argument("--distinct", action="store_true", help="other digits at every angle")
    parser.add_argument(
        "--resampling", choices=["NEAREST", "BILINEAR", "BICUBIC"], default="BILINEAR"
    )
    parser.add_argument("--size", type=int, default=28)
    parser.add_argument("--clockwise", action="store_true")
    asked = parser.parse_args()
    images, labels = (each.numpy() for each in read_mnist(data_root(), ("train",)))
    x, y, domain = [], [], []
    for place, angle in enumerate(ANGLES):
        skip = asked.skip + asked.per_class * place * asked.distinct
        rows = rows_of(labels, asked.per_class, skip)
        degrees = -angle if asked.clockwise else angle
        x += [rotated(image, degrees, asked) for image in images[rows]]
        y += labels[rows].tolist()
        domain += [f"{angle}deg"] * len(rows)
    np.savez(asked.out, X=np.stack(x)[:, None], y=np.array(y), domain=np.array(domain))


if __name__ == "__main__":
    main()
