"""Where a merge reads its tensors from: `TensorSource`, implemented by state dicts and by files."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

__all__ = ["TensorSource", "TensorSpec"]


@dataclass(frozen=True)
class TensorSpec:
    """The type and shape of a tensor, known before its entries are read."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of entries."""
        return math.prod(self.shape)


class TensorSource(Protocol):
    """Named tensors that can be read whole or in pieces: a state dict, or files."""

    @property
    def label(self) -> str:
        """The name of the source in messages."""

    @property
    def specs(self) -> Mapping[str, TensorSpec]:
        """The type and shape of every tensor, by name."""

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Tensor:
        """Entries `start` to `stop` of a tensor, flattened; a view that must not be modified."""
