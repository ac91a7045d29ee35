"""Rotated digits: 1,797 real handwritten digits at six angles, embedded and offline.

The digits of the UCI set that ships with scikit-learn (8 × 8, 17 grey levels) are drawn enlarged
into a 16 × 16 frame, with room to turn (no angle loses 1 % of the ink), and turned by their
domain's angle. Every image is in exactly one domain: none is seen at one angle and tested at
another.
"""

import numpy as np
import torch
import torch.nn.functional as F
from scipy import ndimage
from sklearn.datasets import load_digits

from afield.data.domains import Domain, DomainSet, ReadOptions, Training

__all__ = ["rotated_digits"]

ANGLES = (0, 15, 30, 45, 60, 75)
FRAME, DIGIT = 16, 12


def _read(reading: ReadOptions) -> dict[str, Domain]:
    del reading
    digits = load_digits()
    enlarged = F.interpolate(
        torch.from_numpy(digits.images)[:, None], size=DIGIT, mode="bilinear", align_corners=False
    )
    framed = F.pad(enlarged, [(FRAME - DIGIT) // 2] * 4).numpy()
    y = torch.from_numpy(digits.target)
    member = np.random.default_rng(0).permutation(len(y)) % len(ANGLES)
    domains = {}
    for i, angle in enumerate(ANGLES):
        rows = np.flatnonzero(member == i)
        turned = ndimage.rotate(framed[rows], angle, axes=(2, 3), reshape=False, order=1)
        grey = torch.from_numpy(turned * (255 / 16)).round().clamp(0, 255).to(torch.uint8)
        domains[f"{angle}deg"] = Domain(x=grey, y=y[rows])
    return domains


rotated_digits = DomainSet(
    name="rotated_digits",
    domains=tuple(f"{angle}deg" for angle in ANGLES),
    classes=tuple(str(digit) for digit in range(10)),
    reader=_read,
    training=Training(steps=300, batch=16, lr=3e-3),
)
