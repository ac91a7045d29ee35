"""Rotated MNIST, the early form: the same 1,000 digits, 100 of each, at six angles.

Ghifary, Kleijn, Zhang and Balduzzi, Domain Generalization for Object Recognition with Multi-task
Autoencoders, ICCV 2015. Domains are angles: 0, 15, … 75 degrees, counter-clockwise.

Every digit is in every domain, so a digit that is tested on has been trained on at the other
angles. That makes the task easier than `rotated_mnist`, where no digit is in two domains, and a
source's probe part says little, since its digits are in the main parts of the other sources. It is
the setting with which CrossGrad (Shankar et al., ICLR 2018, Table 9) compares.

What is known of it: CrossGrad's paper says that the images are rotated to make the domains M0, M15,
… M75, and names Ghifary et al. for the rest. Their own code reads six domains of 16 × 16 pixels
from a file (1,000 samples each, by a port of it to PyTorch) and pairs the k-th samples of all
domains, so these show the same digit. DIVA's code (Ilse et al., MIDL 2020) takes the same 1,000
digits of the training part at all angles, in 28 × 28, and tests on them. Chosen here: 100 of each
digit, drawn once from the training part, 28 × 28, and the bilinear rotation of `rotated_mnist`.
Which digits the authors drew is not known, so their numbers can be approached but not repeated.

Under the data root: ``MNIST/raw/``, the two files of the training part, packed or not.
"""

from functools import partial
from pathlib import Path

import numpy as np
import torch

from afield.data.cache import Arrays, cache_arrays
from afield.data.domains import Domain, DomainSet, ReadOptions, Training
from afield.data.sources.mnist import MNIST_DOWNLOAD, mnist_files, read_mnist, rotate_images
from afield.errors import DataError
from afield.seeds import derive_seed

__all__ = ["rotated_mnist_1k"]

ANGLES = (0, 15, 30, 45, 60, 75)
NAMES = tuple(f"{angle}deg" for angle in ANGLES)
PART = ("train",)
CLASSES, EACH = 10, 100


def rotated_mnist_1k(root: Path) -> DomainSet:
    """The dataset for this root of all data."""
    return DomainSet(
        name="rotated_mnist_1k",
        domains=NAMES,
        classes=tuple(str(digit) for digit in range(CLASSES)),
        reader=_read,
        training=Training(steps=600, batch=16),
        needs=mnist_files(root, PART),
        download=MNIST_DOWNLOAD,
        sizes=dict.fromkeys(NAMES, CLASSES * EACH),
    )


def _read(reading: ReadOptions) -> dict[str, Domain]:
    root = reading.root.resolve()
    found = cache_arrays(
        root / "MNIST",
        [root / name for name in mnist_files(root, PART)],
        partial(_made, root),
        description="rotated_mnist_1k, construction 1",
        needed_bytes=len(ANGLES) * CLASSES * EACH * 28 * 28,
    )
    return {name: Domain(x=found[f"x{i}"], y=found["y"]) for i, name in enumerate(NAMES)}


def _made(root: Path) -> Arrays:
    images, digits = read_mnist(root, PART)
    order = np.random.default_rng(derive_seed("rotated_mnist_1k")).permutation(len(digits))
    of_each = [order[(digits[order] == digit).numpy()][:EACH] for digit in range(CLASSES)]
    for digit, rows in enumerate(of_each):
        if len(rows) < EACH:
            told = f"{len(rows)} images of the digit {digit}, {EACH} are needed"
            raise DataError(f"{root / 'MNIST'}: {told}; get the data anew")
    chosen = torch.from_numpy(np.concatenate(of_each))
    arrays: Arrays = {"y": np.asarray(digits[chosen])}
    for i, angle in enumerate(ANGLES):
        arrays[f"x{i}"] = np.asarray(rotate_images(images[chosen], angle)[:, None])
    return arrays
