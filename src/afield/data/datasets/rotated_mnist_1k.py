"""Rotated MNIST, early version: the same 1,000 digits, 100 of each class, at six angles.

Ghifary, Kleijn, Zhang and Balduzzi, Domain Generalization for Object Recognition with Multi-task
Autoencoders, ICCV 2015. The domains are angles: 0, 15, … 75 degrees, counterclockwise.

Every digit is in every domain, so a test digit has been trained on at the other angles. That makes
the task easier than `rotated_mnist`, where no digit is in two domains. The validation split of a
source says little, because its digits are in the training splits of the other sources. CrossGrad
(Shankar et al., ICLR 2018, Table 9) compares methods in this setting.

The construction is only partly known:

- CrossGrad's paper says that the images are rotated to create the domains M0, M15, … M75, and
  refers to Ghifary et al. for the rest.
- The code of Ghifary et al. reads six domains of 16 × 16 pixels from a file (1,000 samples each,
  according to a port to PyTorch) and pairs the k-th samples of all domains, so these show the same
  digit.
- DIVA's code (Ilse et al., MIDL 2020) takes the same 1,000 digits of the training set at all
  angles, in 28 × 28, and tests on them.

Here: 100 digits of each class, drawn once from the training set, 28 × 28, with the bilinear
rotation of `rotated_mnist`. The digits that the authors drew are not known, so their numbers can be
approximated but not reproduced.

In the data root: ``MNIST/raw/``, the two files of the training set, compressed or not.
"""

from functools import partial
from pathlib import Path

import numpy as np
import torch

from afield.data.cache import Arrays, cache_arrays
from afield.data.domains import Domain, DomainSet, ReadOptions
from afield.data.sources.mnist import MNIST_DOWNLOAD, mnist_files, read_mnist, rotate_images
from afield.data.training_settings import Training
from afield.errors import DataError
from afield.seeds import derive_seed

__all__ = ["rotated_mnist_1k"]

ANGLES = (0, 15, 30, 45, 60, 75)
NAMES = tuple(f"{angle}deg" for angle in ANGLES)
SPLITS = ("train",)
CLASSES, PER_CLASS = 10, 100


def rotated_mnist_1k(root: Path) -> DomainSet:
    """Dataset with the files in this data root."""
    return DomainSet(
        name="rotated_mnist_1k",
        domains=NAMES,
        classes=tuple(str(digit) for digit in range(CLASSES)),
        reader=_read,
        training=Training(steps=600, batch=16),
        needs=mnist_files(root, SPLITS),
        download=MNIST_DOWNLOAD,
        sizes=dict.fromkeys(NAMES, CLASSES * PER_CLASS),
    )


def _read(options: ReadOptions) -> dict[str, Domain]:
    root = options.root.resolve()
    arrays = cache_arrays(
        root / "MNIST",
        [root / name for name in mnist_files(root, SPLITS)],
        partial(_build, root),
        description="rotated_mnist_1k, construction 1",
        needed_bytes=len(ANGLES) * CLASSES * PER_CLASS * 28 * 28,
    )
    return {name: Domain(x=arrays[f"x{i}"], y=arrays["y"]) for i, name in enumerate(NAMES)}


def _build(root: Path) -> Arrays:
    images, digits = read_mnist(root, SPLITS)
    order = np.random.default_rng(derive_seed("rotated_mnist_1k")).permutation(len(digits))
    rows_of = [order[(digits[order] == digit).numpy()][:PER_CLASS] for digit in range(CLASSES)]
    for digit, rows in enumerate(rows_of):
        if len(rows) < PER_CLASS:
            raise DataError(
                f"{root / 'MNIST'}: {len(rows)} images of the digit {digit}, but {PER_CLASS} are "
                "needed; download the data again"
            )
    chosen = torch.from_numpy(np.concatenate(rows_of))
    arrays: Arrays = {"y": np.asarray(digits[chosen])}
    for i, angle in enumerate(ANGLES):
        arrays[f"x{i}"] = np.asarray(rotate_images(images[chosen], angle)[:, None])
    return arrays
