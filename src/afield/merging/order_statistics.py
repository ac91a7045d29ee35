"""Exact order statistics of more numbers than fit in memory.

The bits of a float, with those of negative numbers flipped, are an integer of the same order. So
the entry of a given rank is found sixteen bits at a time, the highest bits first: count how often
each value of these bits occurs among the entries that agree in the bits found so far, and continue
with the value in which the rank falls. This takes two passes over float32 and four over float64,
and stores only the counts.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

BITS_PER_PASS = 16
BUCKETS = 1 << BITS_PER_PASS
INTEGER_DTYPES = {torch.float32: torch.int32, torch.float64: torch.int64}


@dataclass(frozen=True)
class Deltas:
    """The deltas of a whole model: pieces [D, n] that can be read any number of times.

    `experts` is D, `size` the number of entries of the model, `read` starts a pass over the pieces.
    """

    experts: int
    size: int
    read: Callable[[], Iterable[Tensor]]

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.read())

    def sorted_entries(
        self, ranks: Sequence[int], of: Callable[[Tensor], Tensor] = torch.abs
    ) -> Tensor:
        """For each expert, the values at these ranks if a function of its entries were sorted.

        Exact, and of shape [D, ranks]. Every tensor counts, even if no expert has changed it.
        """
        return sorted_entries(_MappedPieces(self, of), ranks)


@dataclass(frozen=True)
class TensorPieces:
    """The base and the deltas of one large tensor: pieces [n] and [D, n], read any number of times.

    `experts` is D, `size` the number of entries, `read` starts a pass over the pieces.
    """

    experts: int
    size: int
    read: Callable[[], Iterable[tuple[Tensor, Tensor]]]

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(self.read())

    @property
    def deltas(self) -> Deltas:
        """The deltas alone."""
        return Deltas(self.experts, self.size, lambda: (deltas for _, deltas in self.read()))


@dataclass(frozen=True)
class _MappedPieces:
    pieces: Iterable[Tensor]
    function: Callable[[Tensor], Tensor]

    def __iter__(self) -> Iterator[Tensor]:
        return map(self.function, self.pieces)


def sorted_entries(pieces: Iterable[Tensor], ranks: Sequence[int]) -> Tensor:
    """For every row, the entries that would stand at these ranks if the row were sorted.

    >>> rows = torch.tensor([[3.0, -1.0, 2.0], [5.0, 5.0, 4.0]])
    >>> sorted_entries([rows[:, :2], rows[:, 2:]], ranks=[0, 2])
    tensor([[-1.,  3.],
            [ 4.,  5.]])

    Parameters
    ----------
    pieces
        Columns of the rows, float32 or float64; they are read several times.
    ranks
        Positions in the sorted row; 0 is the smallest entry.
    """
    first = next(iter(pieces))
    rows, width = len(first), first.element_size() * 8
    searches = [[_Search(rank) for rank in ranks] for _ in range(rows)]
    for shift in range(width - BITS_PER_PASS, -1, -BITS_PER_PASS):
        top = shift == width - BITS_PER_PASS
        counts = [{search.prefix: _zero_counts(first) for search in row} for row in searches]
        for piece in pieces:
            for keys, row_counts in zip(_to_ordered_integers(piece), counts, strict=True):
                for prefix, count in row_counts.items():
                    digits = _digits(keys, shift, None if top else prefix)
                    count.add_(torch.bincount(digits, minlength=BUCKETS))
        for row, row_counts in zip(searches, counts, strict=True):
            for search in row:
                search.narrow(row_counts[search.prefix], top=top)
    keys = torch.tensor(
        [[search.prefix for search in row] for row in searches],
        dtype=INTEGER_DTYPES[first.dtype],
    )
    return _flip_negative(keys).view(first.dtype).to(first.device)


class _Search:
    """The leading bits of one entry found so far, and its rank among entries that share them."""

    def __init__(self, rank: int) -> None:
        self.prefix, self.rank = 0, rank

    def narrow(self, counts: Tensor, *, top: bool) -> None:
        """Find the next bits from the number of entries for each value of them."""
        below = counts.cumsum(0)
        digit = int((below <= self.rank).sum())
        self.rank -= int(below[digit - 1]) if digit else 0
        # The highest bits carry the sign.
        self.prefix = digit - BUCKETS // 2 if top else self.prefix << BITS_PER_PASS | digit


def _zero_counts(like: Tensor) -> Tensor:
    return torch.zeros(BUCKETS, dtype=torch.int64, device=like.device)


def _digits(keys: Tensor, shift: int, prefix: int | None) -> Tensor:
    """The next bits of the keys whose higher bits are equal to the prefix."""
    if prefix is None:
        return (keys >> shift).add_(BUCKETS // 2)
    return (keys[(keys >> shift + BITS_PER_PASS) == prefix] >> shift).bitwise_and_(BUCKETS - 1)


def _to_ordered_integers(values: Tensor) -> Tensor:
    """Integers in the same order as the values."""
    bits = values.contiguous().view(INTEGER_DTYPES[values.dtype])
    return bits if bits.min() >= 0 else _flip_negative(bits)


def _flip_negative(bits: Tensor) -> Tensor:
    """Flip the bits of negative numbers, whose order is reversed; the inverse of itself."""
    width = bits.element_size() * 8
    return (bits >> width - 1).bitwise_and_(torch.iinfo(bits.dtype).max).bitwise_xor_(bits)
