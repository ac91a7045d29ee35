"""Rotated MNIST: all 70,000 digits, distributed over six angles as in DomainBed.

Gulrajani and Lopez-Paz, In Search of Lost Domain Generalization, ICLR 2021, after Ghifary, Kleijn,
Zhang and Balduzzi, Domain Generalization for Object Recognition with Multi-task Autoencoders,
ICCV 2015. The domains are angles: the digits are shuffled once, domain i takes every sixth digit
starting with the i-th, and these are rotated counterclockwise by 0, 15, … 75 degrees. Every digit
is in exactly one domain, so no digit is trained on at one angle and tested at another (in
`rotated_mnist_1k` all are).

In the data root: ``MNIST/raw/``, the four files as published, compressed or not.

Differs from DomainBed: there the shuffle depends on the seed of the run, so the domains differ
between the runs of a sweep; here it is always that of its seed 0. Images are stored as bytes, and
scaled to -1…1 instead of 0…1. The rotation is bilinear in both; older versions of DomainBed, and
the numbers published with them, use bicubic rotation.
"""

from functools import partial
from pathlib import Path

import numpy as np
import torch

from afield.data.cache import Arrays, cache_arrays
from afield.data.domains import Domain, DomainSet, ReadOptions
from afield.data.sources.mnist import MNIST_DOWNLOAD, mnist_files, read_mnist, rotate_images
from afield.data.training_settings import Training

__all__ = ["rotated_mnist"]

ANGLES = (0, 15, 30, 45, 60, 75)
NAMES = tuple(f"{angle}deg" for angle in ANGLES)
SIZES = (11_667, 11_667, 11_667, 11_667, 11_666, 11_666)
SEED = 0


def rotated_mnist(root: Path) -> DomainSet:
    """Dataset with the files in this data root."""
    return DomainSet(
        name="rotated_mnist",
        domains=NAMES,
        classes=tuple(str(digit) for digit in range(10)),
        reader=_read,
        # DomainBed's defaults for small images.
        training=Training(steps=5000, every=100, batch=64, lr=1e-3, backbone="small:mnist_cnn"),
        needs=mnist_files(root),
        download=MNIST_DOWNLOAD,
        sizes=dict(zip(NAMES, SIZES, strict=True)),
    )


def _read(options: ReadOptions) -> dict[str, Domain]:
    root = options.root.resolve()
    arrays = cache_arrays(
        root / "MNIST",
        [root / name for name in mnist_files(root)],
        partial(_build, root),
        description="rotated_mnist, construction 1",
        needed_bytes=sum(SIZES) * 28 * 28,
    )
    return {name: Domain(x=arrays[f"x{i}"], y=arrays[f"y{i}"]) for i, name in enumerate(NAMES)}


def _build(root: Path) -> Arrays:
    images, digits = read_mnist(root)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(SEED))
    arrays: Arrays = {}
    for i, angle in enumerate(ANGLES):
        rows = order[i :: len(ANGLES)]
        arrays[f"x{i}"] = np.asarray(rotate_images(images[rows], angle)[:, None])
        arrays[f"y{i}"] = np.asarray(digits[rows])
    return arrays
