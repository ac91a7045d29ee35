"""The authors' numbers for spectral merges, and matrices that are hard in float32."""

from functools import cache

import numpy as np
import torch

from tests.files import GOLDEN

DATA = GOLDEN
MATRICES = ["a.weight", "b.weight", "c.weight"]


@cache
def numbers(file: str) -> dict[str, torch.Tensor]:
    with np.load(DATA / f"{file}.npz") as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays.files}


def reference(domains: int, matrix: str) -> torch.Tensor:
    """The deltas of the reference's experts."""
    return torch.stack(
        [numbers(f"merging_D{domains}")[f"delta{d}/{matrix}"] for d in range(domains)]
    )


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def steep(domains: int, m: int, n: int, *, ratio: float) -> torch.Tensor:
    """Deltas whose singular values fall by a power law, by `ratio` over those that are kept."""
    rank = min(m, n)
    power = np.log(ratio) / np.log(rank // domains)
    values = torch.arange(1, rank + 1, dtype=torch.float64) ** -power
    left = torch.linalg.qr(normal(domains, m, rank, seed=1)).Q
    return (left * values) @ torch.linalg.qr(normal(domains, n, rank, seed=2)).Q.mT


def low_rank(domains: int, m: int, n: int) -> torch.Tensor:
    return normal(domains, m, 16, seed=1) @ normal(domains, 16, n, seed=2)


# Three experts do not divide ranks of 64 and 128, two do.
STABILITY = {
    "full rank": normal(2, 96, 64),
    "rank 16": low_rank(3, 96, 64),
    "rank 16, alike": low_rank(1, 96, 64).expand(3, 96, 64),
    "nearly alike (1e-6)": normal(96, 64) + 1e-6 * normal(2, 96, 64, seed=1),
    "alike": normal(96, 64).expand(3, 96, 64),
    "zero": torch.zeros(3, 96, 64, dtype=torch.float64),
    "one is zero": torch.cat([normal(2, 96, 64), torch.zeros(1, 96, 64)]),
    "wide": normal(2, 64, 192),
    "steep (200)": steep(2, 128, 128, ratio=200),
    "steep (400), indivisible": steep(3, 128, 128, ratio=400),
    "square, indivisible": normal(3, 128, 128),
}


def change(merge, deltas: torch.Tensor) -> float:
    """By how much float32 changes a result: of the same numbers, and of numbers cut to float32."""
    small = deltas.float()
    result = merge(small).double()
    gaps = [(result - merge(each)).norm().item() for each in (small.double(), deltas)]
    return max(gaps) / (merge(deltas).norm().item() or 1.0)


def leading_part(delta: torch.Tensor, count: int) -> torch.Tensor:
    u, s, vh = torch.linalg.svd(delta, full_matrices=False)
    return (u[:, :count] * s[:count]) @ vh[:count]
