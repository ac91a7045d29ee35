"""Rotated digits: 1,797 handwritten digits at six angles; no download is needed.

The UCI digits that come with scikit-learn (8 × 8 pixels, 17 gray values) are enlarged and centered
in a 16 × 16 frame, which leaves room for rotation (less than 1 % of the ink is lost at any angle),
and rotated by the angle of their domain. Every image is in exactly one domain, so no digit is
trained on at one angle and tested at another.
"""

import numpy as np
import torch
import torch.nn.functional as F
from scipy import ndimage

from afield.data.domains import Domain, DomainSet, ReadOptions
from afield.data.sources.digits import read_digits
from afield.data.training_settings import Training

__all__ = ["rotated_digits"]

ANGLES = (0, 15, 30, 45, 60, 75)
FRAME, DIGIT = 16, 12


def _read(options: ReadOptions) -> dict[str, Domain]:
    del options
    images, labels = read_digits()
    enlarged = F.interpolate(
        torch.from_numpy(images)[:, None], size=DIGIT, mode="bilinear", align_corners=False
    )
    framed = F.pad(enlarged, [(FRAME - DIGIT) // 2] * 4).numpy()
    y = torch.from_numpy(labels)
    domain_of = np.random.default_rng(0).permutation(len(y)) % len(ANGLES)
    domains = {}
    for i, angle in enumerate(ANGLES):
        rows = np.flatnonzero(domain_of == i)
        rotated = ndimage.rotate(framed[rows], angle, axes=(2, 3), reshape=False, order=1)
        x = torch.from_numpy(rotated * (255 / 16)).round().clamp(0, 255).to(torch.uint8)
        domains[f"{angle}deg"] = Domain(x=x, y=y[rows])
    return domains


rotated_digits = DomainSet(
    name="rotated_digits",
    domains=tuple(f"{angle}deg" for angle in ANGLES),
    classes=tuple(str(digit) for digit in range(10)),
    reader=_read,
    training=Training(steps=300, batch=16, lr=3e-3, augment="light"),
)
