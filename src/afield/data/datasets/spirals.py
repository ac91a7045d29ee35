"""Spirals: points on two spiral arms, rotated a little further in each of four domains.

Synthetic and tiny, for tests and first steps: a run takes a fraction of a second.
"""

import math

import torch

from afield.data.domains import Domain, DomainSet, ReadOptions
from afield.data.training_settings import Training
from afield.seeds import derive_seed

__all__ = ["spirals"]

TURNS = {"turn0": 0.0, "turn10": 10.0, "turn20": 20.0, "turn30": 30.0}
SIZE = 200


def _read(options: ReadOptions) -> dict[str, Domain]:
    del options
    return {name: _draw_arms(name, math.radians(degrees)) for name, degrees in TURNS.items()}


def _draw_arms(name: str, turn: float) -> Domain:
    generator = torch.Generator().manual_seed(derive_seed("spirals", name))
    y = torch.arange(SIZE) % 2
    along = torch.rand(SIZE, generator=generator)
    angle = 1.5 * math.pi * along + math.pi * y + turn
    radius = 0.2 + along
    x = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)
    return Domain(x=x + 0.05 * torch.randn(x.shape, generator=generator), y=y)


spirals = DomainSet(
    name="spirals",
    domains=tuple(TURNS),
    classes=("first", "second"),
    reader=_read,
    training=Training(steps=200, batch=32, lr=3e-3, backbone="small:mlp"),
)
