"""From domains to batches: everything in memory, a batch is an index into a tensor.

A stream draws from every group of samples (the source domains, unless a method regroups) without
replacement until the group is used up, then anew. The order of the samples is a function of the
seed and the position, so the position is all that a snapshot has to keep.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from afield.domains import Domain
from afield.randomness import seed

__all__ = ["Batch", "Prepare", "Samples", "Scaling", "Stream", "pooled_samples", "unchanged"]

# Steps whose samples are drawn at once, so that a step pays for one row of a table only.
BLOCK = 64


class Batch(NamedTuple):
    """Inputs, class indices, and for each sample the index of its source domain."""

    x: Tensor
    y: Tensor
    domain: Tensor


Prepare = Callable[[Tensor], Tensor]


def unchanged(x: Tensor) -> Tensor:
    """Stored values as they are."""
    return x


@dataclass(frozen=True)
class Samples:
    """The main parts of the source domains, one after the other: all that training may see.

    `x` is as stored (pictures as bytes, a quarter of the memory); `prepare` makes of a batch of it
    what a network sees.
    """

    x: Tensor
    y: Tensor
    domain: Tensor
    prepare: Prepare = unchanged

    def __len__(self) -> int:
        return len(self.y)

    def batch(self, index: Tensor) -> Batch:
        """The samples with these indices, ready for a network."""
        x, y, domain = (part.index_select(0, index) for part in (self.x, self.y, self.domain))
        return Batch(self.prepare(x), y, domain)

    def by_domain(self) -> list[Tensor]:
        """Indices of the samples of each source domain."""
        counts: list[int] = self.domain.bincount().tolist()
        return list(torch.arange(len(self)).split(counts))


@dataclass(frozen=True)
class Scaling:
    """From stored values to what a network sees: (x - mean) / std.

    Pictures go from 0…255 to -1…1. Other numbers are standardised, per feature or channel, with the
    mean and deviation of the sources' main parts: nothing of an unseen domain enters.
    """

    mean: Tensor
    std: Tensor

    @classmethod
    def fitted(cls, x: Tensor) -> "Scaling":
        """The scaling that suits these samples, on their device."""
        if x.dtype == torch.uint8:
            half = torch.tensor(127.5, device=x.device)
            return cls(half, half)
        dims = [d for d in range(x.ndim) if d != 1]
        std, mean = torch.std_mean(x, dim=dims, keepdim=True, correction=0)
        return cls(mean[0], torch.where(std[0] > 0, std[0], 1.0))

    def told(self) -> dict[str, Any]:
        """Mean and deviation as plain numbers, to be kept beside the weights."""
        return {"mean": self.mean.flatten().tolist(), "std": self.std.flatten().tolist()}

    def __call__(self, x: Tensor) -> Tensor:
        """Scaled values, pictures in the memory layout that convolutions prefer."""
        scaled = x.float().sub(self.mean).div_(self.std)
        return scaled.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else scaled


def pooled_samples(mains: Mapping[str, Domain]) -> Samples:
    """The sources' main parts as one; the order of the mapping numbers the domains."""
    x = torch.cat([domain.x for domain in mains.values()])
    y = torch.cat([domain.y for domain in mains.values()])
    counts = torch.tensor([len(domain.y) for domain in mains.values()])
    domain = torch.repeat_interleave(torch.arange(len(mains)), counts)
    return Samples(x, y, domain.to(y.device))


class Stream:
    """Endless batches: every step, one from each group."""

    def __init__(self, samples: Samples, *, batch: int, seed: int) -> None:
        self.samples = samples
        self.seed = seed
        self.generation = 0
        self.groups = samples.by_domain()
        self.total = batch * len(self.groups)
        self.table: Tensor | None = None
        self._start()

    def regroup(self, groups: Sequence[Sequence[int] | Tensor]) -> None:
        """Draw from these groups of indices from now on; the whole batch keeps its size."""
        self.generation += 1
        self.groups = [torch.as_tensor(group, device="cpu") for group in groups]
        if not all(len(group) for group in self.groups):
            raise ValueError("a group without samples cannot be drawn from")
        self._start()

    def __iter__(self) -> "Stream":
        return self

    def __next__(self) -> list[Batch]:
        block, row = divmod(self.drawn, BLOCK)
        if row == 0 or self.table is None:
            self.table = self._drawn_block(block).to(self.samples.y.device)
        self.drawn += 1
        pooled = self.samples.batch(self.table[row])
        columns = (part.split(self.sizes) for part in pooled)
        return [Batch(*parts) for parts in zip(*columns, strict=True)]

    def state_dict(self) -> dict[str, Any]:
        """Where the stream is."""
        return {"generation": self.generation, "drawn": self.drawn, "groups": self.groups}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a saved place."""
        self.generation, self.groups = state["generation"], state["groups"]
        self._start()
        self.drawn = state["drawn"]

    def _start(self) -> None:
        n = len(self.groups)
        total = max(self.total, n)
        self.sizes = [total // n + (i < total % n) for i in range(n)]
        self.drawn = 0
        self.table = None

    def _drawn_block(self, block: int) -> Tensor:
        """The indices of a block of batches, one row a step."""
        columns = []
        for i, (group, size) in enumerate(zip(self.groups, self.sizes, strict=True)):
            first, skipped = divmod(block * BLOCK * size, len(group))
            rounds = -(-(skipped + BLOCK * size) // len(group))
            orders = [self._order(i, first + number) for number in range(rounds)]
            drawn = torch.cat(orders)[skipped : skipped + BLOCK * size]
            columns.append(group[drawn].view(BLOCK, size))
        return torch.cat(columns, dim=1)

    def _order(self, group: int, number: int) -> Tensor:
        """The order in which a group is gone through for the first, second, … time."""
        place = seed(self.seed, self.generation, group, number)
        generator = torch.Generator().manual_seed(place)
        return torch.randperm(len(self.groups[group]), generator=generator)
