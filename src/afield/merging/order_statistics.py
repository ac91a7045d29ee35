"""Exact order statistics of more numbers than fit in memory.

A float's bits, with those of negative numbers turned round, are a whole number of the same order.
So the entry of a given rank is found sixteen bits at a time, the highest first: count how often
each value of them occurs among the entries that agree in the bits found so far, and go to the one
in which the rank falls. That is two readings of float32 and four of float64, and nothing is kept
but the counts.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Deltas", "sorted_entries"]

BITS_PER_PASS = 16
BUCKETS = 1 << BITS_PER_PASS
INTEGER_DTYPES = {torch.float32: torch.int32, torch.float64: torch.int64}


@dataclass(frozen=True)
class Deltas:
    """The deltas of a whole model: pieces [D, n] that can be read again and again."""

    experts: int
    size: int
    read: Callable[[], Iterable[Tensor]]

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.read())

    def sorted_entries(
        self, ranks: Sequence[int], of: Callable[[Tensor], Tensor] = torch.abs
    ) -> Tensor:
        """Per expert, which values of a function of the entries stand at these places if sorted.

        Exact, and [D, ranks]; every tensor counts, also one that no expert has changed.
        """
        return sorted_entries(_Mapped(self, of), ranks)


@dataclass(frozen=True)
class _Mapped:
    pieces: Iterable[Tensor]
    of: Callable[[Tensor], Tensor]

    def __iter__(self) -> Iterator[Tensor]:
        return map(self.of, self.pieces)


def sorted_entries(pieces: Iterable[Tensor], ranks: Sequence[int]) -> Tensor:
    """For every row, the entries that would stand at these places if the row were sorted.

    >>> rows = torch.tensor([[3.0, -1.0, 2.0], [5.0, 5.0, 4.0]])
    >>> sorted_entries([rows[:, :2], rows[:, 2:]], ranks=[0, 2])
    tensor([[-1.,  3.],
            [ 4.,  5.]])

    Parameters
    ----------
    pieces
        Columns of the rows, float32 or float64; they are read several times.
    ranks
        Places, from 0 for the smallest entry.
    """
    first = next(iter(pieces))
    rows, width = len(first), first.element_size() * 8
    searches = [[_Search(rank) for rank in ranks] for _ in range(rows)]
    for shift in range(width - BITS_PER_PASS, -1, -BITS_PER_PASS):
        top = shift == width - BITS_PER_PASS
        counts = [{s.prefix: _counts(first) for s in row} for row in searches]
        for piece in pieces:
            for keys, found in zip(_ordered(piece), counts, strict=True):
                for prefix, count in found.items():
                    digits = _digits(keys, shift, None if top else prefix)
                    count.add_(torch.bincount(digits, minlength=BUCKETS))
        for row, found in zip(searches, counts, strict=True):
            for search in row:
                search.narrow(found[search.prefix], top=top)
    keys = torch.tensor(
        [[s.prefix for s in row] for row in searches], dtype=INTEGER_DTYPES[first.dtype]
    )
    return _turned(keys).view(first.dtype).to(first.device)


class _Search:
    """The leading bits of one entry that are known, and its rank among those that share them."""

    def __init__(self, rank: int) -> None:
        self.prefix, self.rank = 0, rank

    def narrow(self, counts: Tensor, *, top: bool) -> None:
        """Learn the next bits from how often each value of them occurs."""
        below = counts.cumsum(0)
        digit = int((below <= self.rank).sum())
        self.rank -= int(below[digit - 1]) if digit else 0
        # The highest bits carry the sign.
        self.prefix = digit - BUCKETS // 2 if top else self.prefix << BITS_PER_PASS | digit


def _counts(like: Tensor) -> Tensor:
    return torch.zeros(BUCKETS, dtype=torch.int64, device=like.device)


def _digits(keys: Tensor, shift: int, prefix: int | None) -> Tensor:
    """The bits to look at next, of those keys that agree in the higher ones."""
    if prefix is None:
        return (keys >> shift).add_(BUCKETS // 2)
    return (keys[(keys >> shift + BITS_PER_PASS) == prefix] >> shift).bitwise_and_(BUCKETS - 1)


def _ordered(values: Tensor) -> Tensor:
    """Whole numbers of the same order as the values."""
    bits = values.contiguous().view(INTEGER_DTYPES[values.dtype])
    return bits if bits.min() >= 0 else _turned(bits)


def _turned(bits: Tensor) -> Tensor:
    """Among negative numbers a larger magnitude is less: turn their bits round, or back."""
    width = bits.element_size() * 8
    return (bits >> width - 1).bitwise_and_(torch.iinfo(bits.dtype).max).bitwise_xor_(bits)
