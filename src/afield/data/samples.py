"""Samples of several domains behind one index, held in memory or read from disk when needed.

Arrays that the cache maps from disk may be larger than memory. A batch reads only the rows it
needs, and the operating system caches the rows that are used often. Small arrays are copied to the
device once, at the start.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, overload

import torch
from torch import Tensor

from afield.data.domains import Domain

# Rows of up to this many bytes are copied to the device. A CPU reads a memory map nearly as fast.
MAX_BYTES_CPU = 64 * 2**20
# On a GPU, rows are copied if they take at most this share of the memory that is free then: those
# of training and of several evaluations are to fit, and the network too.
GPU_MEMORY_SHARE = 1 / 4
# Samples with at least this many values are large, such as photographs.
LARGE_SAMPLE_VALUES = 2**15
# The type of token ids, and of nothing else: numbers of other modalities are bytes or floats.
TOKEN_DTYPE = torch.int32

Prepare = Callable[[Tensor], Tensor]
Augment = Callable[[Tensor, torch.Generator], Tensor]


def identity(x: Tensor) -> Tensor:
    """Return the stored values unchanged."""
    return x


class Rows:
    """The `chosen` rows of each of the `arrays`, concatenated; `take` reads some of them."""

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
            max_bytes = _max_bytes(self.device)
        if len(self) * self.shape.numel() * self.arrays[0].element_size() <= max_bytes:
            pieces = [take_rows(a, rows) for a, rows in zip(self.arrays, self.chosen, strict=True)]
            self.in_memory = torch.cat(pieces).to(self.device)
            self.arrays, self.chosen = [], []

    def __len__(self) -> int:
        return int(self.ends[-1])

    @property
    def is_pixels(self) -> bool:
        """Whether the values are bytes, which stand for the pixels of images in every modality."""
        return self.dtype == torch.uint8

    @property
    def is_tokens(self) -> bool:
        """Whether the values are token ids of texts, padded with -1."""
        return self.dtype == TOKEN_DTYPE

    @cached_property
    def lengths(self) -> Tensor:
        """Number of tokens of each text, on the CPU."""
        return torch.cat([(chunk >= 0).sum(dim=1) for chunk in self.chunks(4096)]).cpu()

    @property
    def index_device(self) -> torch.device:
        """Device on which `take` expects its index: the CPU for rows that are read from disk."""
        return self.device if self.in_memory is not None else torch.device("cpu")

    def take(self, index: Tensor) -> Tensor:
        """Rows at the given indices, on the device."""
        if self.in_memory is not None:
            return take_rows(self.in_memory, index)
        array_of_row = torch.bucketize(index, self.ends, right=True)
        pieces, positions = [], []
        for number in array_of_row.unique().tolist():
            position = (array_of_row == number).nonzero().flatten()
            start = self.ends[number - 1] if number else 0
            row = self.chosen[number][index[position] - start]
            pieces.append(take_rows(self.arrays[number], row))
            positions.append(position)
        rows = pieces[0]
        if len(pieces) > 1:
            rows = take_rows(torch.cat(pieces), torch.cat(positions).argsort())
        if self.device.type == "cuda":
            rows = rows.pin_memory()
        return rows.to(self.device, non_blocking=True)

    def chunks(self, size: int, chosen: Tensor | None = None) -> Iterator[Tensor]:
        """Iterate over all rows, or over the `chosen` indices, in chunks of up to `size` rows."""
        if self.in_memory is not None and chosen is None:
            yield from self.in_memory.split(size)
            return
        index = torch.arange(len(self)) if chosen is None else chosen
        for chunk in index.to(self.index_device).split(size):
            yield self.take(chunk)


def _max_bytes(device: torch.device) -> int:
    """The size up to which rows are copied to a device."""
    if device.type != "cuda":
        return MAX_BYTES_CPU
    free, _ = torch.cuda.mem_get_info(device)
    return int(GPU_MEMORY_SHARE * free)


def take_rows(array: Tensor, index: Tensor) -> Tensor:
    """Rows of an array, in the array's memory layout."""
    if array.ndim == 4 and not array.is_contiguous():
        return array.permute(0, 2, 3, 1).index_select(0, index).permute(0, 3, 1, 2)
    return array.index_select(0, index)


def trim_padding(x: Tensor) -> Tensor:
    """Token ids without the columns at the end that are padding in every row."""
    return x[:, : int((x >= 0).sum(dim=1).max())]


class Batch(NamedTuple):
    """Inputs, class indices, and for each sample the index of its source domain and its group.

    Groups are the source domains, unless a method regroups.
    """

    x: Tensor
    y: Tensor
    domain: Tensor
    group: Tensor


class PooledBatches(Sequence[Batch]):
    """Batches that are pieces of one; it is divided when a piece is asked for."""

    def __init__(self, pooled: Batch, sizes: Sequence[int]) -> None:
        self.pooled = pooled
        self.sizes = list(sizes)

    @cached_property
    def pieces(self) -> list[Batch]:
        """The batches."""
        fields = (field.split(self.sizes) for field in self.pooled)
        return [Batch(*values) for values in zip(*fields, strict=True)]

    @overload
    def __getitem__(self, index: int) -> Batch: ...
    @overload
    def __getitem__(self, index: slice) -> list[Batch]: ...
    def __getitem__(self, index: int | slice) -> Batch | list[Batch]:
        return self.pieces[index]

    def __len__(self) -> int:
        return len(self.sizes)


@dataclass(frozen=True)
class Samples:
    """The training splits of the source domains, concatenated: everything that training may see.

    `x` holds values as stored (images as bytes, which take a quarter of the memory of floats).
    `prepare` turns a batch of them into the input of a network, `augment` into its input in
    training.
    """

    x: Rows
    y: Tensor
    domain: Tensor
    prepare: Prepare = identity
    augment: Augment | None = None

    def __len__(self) -> int:
        return len(self.y)

    @property
    def are_large(self) -> bool:
        """Whether a sample has very many values."""
        return self.x.shape.numel() >= LARGE_SAMPLE_VALUES

    @property
    def take_time(self) -> bool:
        """Whether a batch takes more than a moment to make.

        It does if the rows are on disk, or if large images are augmented on a CPU.
        """
        augmented = self.augment is not None and self.x.device.type == "cpu"
        return self.x.in_memory is None or (augmented and self.are_large)

    def batch(
        self,
        index: Tensor,
        generator: torch.Generator | None = None,
        group: Tensor | None = None,
        width: int | None = None,
    ) -> Batch:
        """Samples at the given indices as input of a network; a generator turns on augmentation.

        `width` is the number of tokens of the longest text among them, if they are texts.
        """
        y, domain = (column.index_select(0, index) for column in (self.y, self.domain))
        x = self.x.take(index)[:, :width]
        if self.augment is not None and generator is not None:
            inputs = self.augment(x, generator)
        else:
            inputs = self.prepare(x)
        group = domain if group is None else group
        if y.device != x.device:
            columns = (column.to(x.device, non_blocking=True) for column in (y, domain, group))
            y, domain, group = columns
        return Batch(inputs, y, domain, group)

    def by_domain(self) -> list[Tensor]:
        """Indices of the samples of each source domain."""
        counts: list[int] = self.domain.bincount().tolist()
        return list(torch.arange(len(self)).split(counts))


def pool_domains(
    domains: Mapping[str, Domain],
    chosen: Mapping[str, Tensor] | None = None,
    device: torch.device | str = "cpu",
) -> Samples:
    """Concatenate domains, or the `chosen` samples of each.

    Domains are numbered in the order of `chosen` if it is given, else in that of `domains`.
    """
    rows = chosen or {name: torch.arange(len(domain.y)) for name, domain in domains.items()}
    x = Rows([domains[name].x for name in rows], list(rows.values()), device=device)
    y = torch.cat([domains[name].y[index] for name, index in rows.items()])
    counts = torch.tensor([len(index) for index in rows.values()])
    domain = torch.repeat_interleave(torch.arange(len(rows)), counts)
    return Samples(x, y.to(x.index_device), domain.to(x.index_device))
