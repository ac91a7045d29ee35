"""What the tests of merges share: the authors' numbers, and made-up deltas."""

import numpy as np
import torch
from torch import Tensor

from tests.files import GOLDEN

DATA = GOLDEN


def reference(experts: int, method: str) -> tuple[dict[str, Tensor], list[dict[str, Tensor]], dict]:
    """A base, experts, and what the authors' code makes of them, in float64."""
    with np.load(DATA / f"merging_D{experts}.npz") as file:
        folders = ["base", *(f"ft{i}" for i in range(experts)), f"final/{method}"]
        names = [key.removeprefix("base/") for key in file.files if key.startswith("base/")]
        base, *others = [
            {name: torch.from_numpy(file[f"{folder}/{name}"]) for name in names}
            for folder in folders
        ]
    return base, others[:-1], others[-1]


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Normal numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)
