"""Chosen rows of several arrays as one: a little is held in memory, much is read when asked for.

Arrays that the cache maps from disk may be larger than memory; of these a batch takes what it
needs, and the system keeps what is used often. What is small lies on the device from the start.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

__all__ = ["MAX_BYTES_CPU", "Rows", "take_rows"]

# The most bytes that are copied to the memory of a CPU, where a map is nearly as good, or a GPU.
MAX_BYTES_CPU, MAX_BYTES_GPU = 64 * 2**20, 512 * 2**20


class Rows:
    """Rows `chosen` of each of the `arrays`, one after the other; `take` gives some of them."""

    def __init__(
        self,
        arrays: Sequence[Tensor],
        chosen: Sequence[Tensor] | None = None,
        *,
        device: torch.device | str = "cpu",
        max_bytes: int | None = None,
    ) -> None:
        self.arrays = list(arrays)
        self.chosen = list(chosen or [torch.arange(len(array)) for array in arrays])
        self.device = torch.device(device)
        self.shape = torch.Size(self.arrays[0].shape[1:])
        self.dtype = self.arrays[0].dtype
        sizes = torch.tensor([len(rows) for rows in self.chosen])
        self.ends = sizes.cumsum(0)
        self.in_memory: Tensor | None = None
        if max_bytes is None:
            max_bytes = MAX_BYTES_CPU if self.device.type == "cpu" else MAX_BYTES_GPU
        if len(self) * self.shape.numel() * self.arrays[0].element_size() <= max_bytes:
            pieces = [take_rows(a, rows) for a, rows in zip(self.arrays, self.chosen, strict=True)]
            self.in_memory = torch.cat(pieces).to(self.device)
            self.arrays, self.chosen = [], []

    def __len__(self) -> int:
        return int(self.ends[-1])

    @property
    def place(self) -> torch.device:
        """Where indices should be: reading from disk needs them on this side."""
        return self.device if self.in_memory is not None else torch.device("cpu")

    def take(self, index: Tensor) -> Tensor:
        """The rows with these numbers, on the device."""
        if self.in_memory is not None:
            return take_rows(self.in_memory, index)
        array = torch.bucketize(index, self.ends, right=True)
        pieces, places = [], []
        for number in array.unique().tolist():
            where = (array == number).nonzero().flatten()
            start = self.ends[number - 1] if number else 0
            pieces.append(take_rows(self.arrays[number], self.chosen[number][index[where] - start]))
            places.append(where)
        found = pieces[0]
        if len(pieces) > 1:
            found = take_rows(torch.cat(pieces), torch.cat(places).argsort())
        if self.device.type == "cuda":
            found = found.pin_memory()
        return found.to(self.device, non_blocking=True)

    def chunks(self, size: int, chosen: Tensor | None = None) -> Iterator[Tensor]:
        """All rows, or those with the chosen numbers, so many at a time."""
        if self.in_memory is not None and chosen is None:
            yield from self.in_memory.split(size)
            return
        index = torch.arange(len(self)) if chosen is None else chosen
        for part in index.to(self.place).split(size):
            yield self.take(part)


def take_rows(array: Tensor, index: Tensor) -> Tensor:
    """Rows of an array, in its own memory layout."""
    if array.ndim == 4 and not array.is_contiguous():
        return array.permute(0, 2, 3, 1).index_select(0, index).permute(0, 3, 1, 2)
    return array.index_select(0, index)
