"""Colored MNIST: 70,000 digits in two classes; the color predicts the class, then misleads.

Arjovsky, Bottou, Gulrajani and Lopez-Paz, Invariant Risk Minimization, 2019, in the construction of
DomainBed (Gulrajani and Lopez-Paz, ICLR 2021).

- The class is 1 for the digits 0 to 4, and is flipped in 25 % of the samples.
- The color is one of two channels: the index of the (flipped) class. It is swapped in 10, 20 and
  90 % of the samples of the domains ``+90%``, ``+80%`` and ``-90%``. Their names say how strongly
  color and class agree; in the last one they mostly disagree.
- Shape alone gives an accuracy of 75 % in every domain, color alone 90, 80 and 10 %.
- The digits are shuffled once, and domain i takes every third digit starting with the i-th, so no
  digit is in two domains.

In the data root: ``MNIST/raw/``, the four files as published, compressed or not.

Differs from DomainBed: there the random numbers depend on the seed of the run, so the domains
differ between the runs of a sweep; here they are always those of its seed 0, drawn in its order.
Images are stored as bytes, and scaled to -1…1 instead of 0…1. As in DomainBed, but unlike in the
paper, images are 28 × 28 instead of 14 × 14.
"""

from pathlib import Path

import torch

from afield.data.domains import Domain, DomainSet, ReadOptions
from afield.data.sources.mnist import MNIST_DOWNLOAD, mnist_files, read_mnist
from afield.data.training_settings import Training

__all__ = ["colored_mnist"]

# Share of the samples whose color is swapped.
SWAPPED = {"+90%": 0.1, "+80%": 0.2, "-90%": 0.9}
SIZES = {"+90%": 23_334, "+80%": 23_333, "-90%": 23_333}
FLIPPED_LABELS = 0.25
SEED = 0


def colored_mnist(root: Path) -> DomainSet:
    """Dataset with the files in this data root."""
    return DomainSet(
        name="colored_mnist",
        domains=tuple(SWAPPED),
        classes=("5-9", "0-4"),
        reader=_read,
        # DomainBed's defaults for small images.
        training=Training(steps=5000, every=100, batch=64, lr=1e-3, backbone="small:mnist_cnn"),
        needs=mnist_files(root),
        download=MNIST_DOWNLOAD,
        sizes=SIZES,
    )


def _read(options: ReadOptions) -> dict[str, Domain]:
    images, digits = read_mnist(options.root)
    generator = torch.Generator().manual_seed(SEED)
    order = torch.randperm(len(images), generator=generator)
    domains = {}
    for i, (name, swapped) in enumerate(SWAPPED.items()):
        rows = order[i :: len(SWAPPED)]
        # Random numbers are drawn in DomainBed's order: all labels of a domain, then all colors.
        flipped = torch.rand(len(rows), generator=generator) < FLIPPED_LABELS
        y = (digits[rows] < 5) ^ flipped
        color = y ^ (torch.rand(len(rows), generator=generator) < swapped)
        x = torch.zeros(len(rows), 2, *images.shape[1:], dtype=torch.uint8)
        x[torch.arange(len(rows)), color.long()] = images[rows]
        domains[name] = Domain(x=x, y=y.long())
    return domains
