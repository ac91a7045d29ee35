"""Colored MNIST: 70,000 digits, small or large, in a colour that mostly tells which, then misleads.

Arjovsky, Bottou, Gulrajani and Lopez-Paz, Invariant Risk Minimization, 2019, in the construction of
DomainBed (Gulrajani and Lopez-Paz, ICLR 2021). The class is 1 for digits 0 to 4, but wrong in 25 %
of the samples. The colour, one of two channels, is the number of that class; it is exchanged in 10,
20 and 90 % of the samples in the domains ``+90%``, ``+80%`` and ``-90%``, which name how often
colour and class agree, the last one against the others. Shape alone gives 75 % in every domain,
colour alone 90, 80 and 10 %. The digits are shuffled once and domain i takes every third from the
i-th on, so none is in two domains.

Under the data root: ``MNIST/raw/``, the four files as published, packed or not.

Differs from DomainBed: its draws follow the seed of the run, so that no two runs of a sweep have
the same domains; here they are always those of its seed 0, in its order. Images are stored as
bytes, and scaled to -1…1 instead of 0…1. As there, and other than in the paper, images are 28 × 28
and not 14 × 14.
"""

from pathlib import Path

import torch

from afield.data.domains import Domain, DomainSet, ReadOptions, Training
from afield.data.sources.mnist import MNIST_DOWNLOAD, mnist_files, read_mnist

__all__ = ["colored_mnist"]

# How often the colour is exchanged.
EXCHANGED = {"+90%": 0.1, "+80%": 0.2, "-90%": 0.9}
SIZES = {"+90%": 23_334, "+80%": 23_333, "-90%": 23_333}
WRONG = 0.25
SEED = 0


def colored_mnist(root: Path) -> DomainSet:
    """The dataset for this root of all data."""
    return DomainSet(
        name="colored_mnist",
        domains=tuple(EXCHANGED),
        classes=("5-9", "0-4"),
        reader=_read,
        # DomainBed's defaults for small images.
        training=Training(steps=5000, every=100, batch=64, lr=1e-3, backbone="small:mnist_cnn"),
        needs=mnist_files(root),
        download=MNIST_DOWNLOAD,
        sizes=SIZES,
    )


def _read(reading: ReadOptions) -> dict[str, Domain]:
    images, digits = read_mnist(reading.root)
    generator = torch.Generator().manual_seed(SEED)
    order = torch.randperm(len(images), generator=generator)
    domains = {}
    for i, (name, exchanged) in enumerate(EXCHANGED.items()):
        rows = order[i :: len(EXCHANGED)]
        # The order of the draws is DomainBed's: first all labels of a domain, then all colours.
        y = (digits[rows] < 5) ^ (torch.rand(len(rows), generator=generator) < WRONG)
        colour = y ^ (torch.rand(len(rows), generator=generator) < exchanged)
        x = torch.zeros(len(rows), 2, *images.shape[1:], dtype=torch.uint8)
        x[torch.arange(len(rows)), colour.long()] = images[rows]
        domains[name] = Domain(x=x, y=y.long())
    return domains
