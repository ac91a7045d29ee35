"""From domains to batches: a batch is an index into arrays, in memory or mapped from disk.

A stream draws from every group of samples (the source domains, unless a method regroups) without
replacement until the group is used up, then anew; where there are many groups, from some of them at
a step, none twice in it and all equally often in the long run. The order of the samples and their
augmentation are functions of the seed and the position, so the position is all that a snapshot has
to keep.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from afield.data.domains import Domain
from afield.data.samples import Rows
from afield.seeds import derive_seed

__all__ = [
    "Augment",
    "Batch",
    "Prepare",
    "Samples",
    "Scaling",
    "Stream",
    "identity",
    "pool_domains",
]

# Steps whose samples are drawn at once, so that a step pays for one row of a table only.
STEPS_PER_BLOCK = 64
# Samples with so many values are made ready group by group: in smaller pieces, which the allocator
# keeps at hand; smaller ones all at once, in fewer calls.
LARGE_SAMPLE_VALUES = 2**15


class Batch(NamedTuple):
    """Inputs, class indices, and for each sample the index of its source domain and its group.

    Groups are the source domains, unless a method regroups.
    """

    x: Tensor
    y: Tensor
    domain: Tensor
    group: Tensor


Prepare = Callable[[Tensor], Tensor]
Augment = Callable[[Tensor, torch.Generator], Tensor]


def identity(x: Tensor) -> Tensor:
    """Stored values as they are."""
    return x


@dataclass(frozen=True)
class Samples:
    """The main parts of the source domains, one after the other: all that training may see.

    `x` is as stored (pictures as bytes, a quarter of the memory); `prepare` makes of a batch of it
    what a network sees, `augment` what it sees in training.
    """

    x: Rows
    y: Tensor
    domain: Tensor
    prepare: Prepare = identity
    augment: Augment | None = None

    def __len__(self) -> int:
        return len(self.y)

    def batch(
        self,
        index: Tensor,
        generator: torch.Generator | None = None,
        group: Tensor | None = None,
    ) -> Batch:
        """The samples with these indices, ready for a network; with a generator, augmented."""
        y, domain = (part.index_select(0, index) for part in (self.y, self.domain))
        x = self.x.take(index)
        if self.augment is not None and generator is not None:
            ready = self.augment(x, generator)
        else:
            ready = self.prepare(x)
        group = domain if group is None else group
        if y.device != x.device:
            parts = (part.to(x.device, non_blocking=True) for part in (y, domain, group))
            y, domain, group = parts
        return Batch(ready, y, domain, group)

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
    def fitted(cls, x: Rows) -> "Scaling":
        """The scaling that suits these samples, on their device."""
        if x.dtype == torch.uint8:
            half = torch.tensor(127.5, device=x.device)
            return cls(half, half)
        if x.in_memory is None:
            mean, std = _moments(x)
        else:
            dims = [d for d in range(x.in_memory.ndim) if d != 1]
            std, mean = torch.std_mean(x.in_memory.float(), dim=dims, keepdim=True, correction=0)
            mean, std = mean[0], std[0]
        return cls(mean, torch.where(std > 0, std, 1.0))

    @classmethod
    def for_images(
        cls, mean: Sequence[float], std: Sequence[float], *, channels: int, device: torch.device
    ) -> "Scaling":
        """The scaling of a network that was made for pictures, its numbers given for 0…1."""
        columns = (torch.tensor(values, device=device) * 255 for values in (mean, std))
        centre, spread = (c if len(c) == channels else c.mean().expand(channels) for c in columns)
        return cls(centre[:, None, None], spread[:, None, None])

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], like: "Scaling") -> "Scaling":
        """The scaling that was `told`, for the same kind of samples as another."""
        found = (
            torch.tensor(values[name], device=like.mean.device).view_as(like.mean)
            for name in ("mean", "std")
        )
        return cls(*found)

    def told(self) -> dict[str, Any]:
        """Mean and deviation as plain numbers, to be kept beside the weights."""
        return {"mean": self.mean.flatten().tolist(), "std": self.std.flatten().tolist()}

    def __call__(self, x: Tensor) -> Tensor:
        """Scaled values, pictures in the memory layout that convolutions prefer."""
        scaled = x.float().sub(self.mean).div_(self.std)
        return scaled.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else scaled


def _moments(x: Rows) -> tuple[Tensor, Tensor]:
    """Mean and deviation of every channel, of rows that do not fit into memory at once."""
    count, total, squares = 0, torch.zeros(()), torch.zeros(())
    for chunk in x.chunks(1024):
        values = chunk.double().movedim(1, 0).flatten(1)
        count += values.shape[1]
        total, squares = total + values.sum(1), squares + values.square().sum(1)
    mean = total / count
    std = (squares / count - mean.square()).clamp(min=0).sqrt()
    shape = (-1, *(1 for _ in x.shape[1:]))
    return mean.float().view(shape), std.float().view(shape)


def pool_domains(
    domains: Mapping[str, Domain],
    chosen: Mapping[str, Tensor] | None = None,
    device: torch.device | str = "cpu",
) -> Samples:
    """The domains, or of each the chosen samples, as one; the mapping's order numbers them."""
    rows = chosen or {name: torch.arange(len(domain.y)) for name, domain in domains.items()}
    x = Rows([domains[name].x for name in rows], list(rows.values()), device=device)
    y = torch.cat([domains[name].y[index] for name, index in rows.items()])
    counts = torch.tensor([len(index) for index in rows.values()])
    domain = torch.repeat_interleave(torch.arange(len(rows)), counts)
    return Samples(x, y.to(x.place), domain.to(x.place))


class Stream:
    """Endless batches: every step, one from each group, or from `per_step` of them.

    With `balance`, the classes of a group come alike: rare ones are gone through more often.
    """

    def __init__(
        self,
        samples: Samples,
        *,
        batch: int,
        seed: int,
        per_step: int = 0,
        balance: bool = False,
    ) -> None:
        self.samples = samples
        self.seed = seed
        self.balance = balance
        self.labels = samples.y.cpu()
        self.generation = 0
        self.groups = samples.by_domain()
        self.domains = len(self.groups)
        self.per_step = min(per_step, self.domains) or self.domains
        self.total = batch * self.per_step
        self.table: Tensor | None = None
        self._start()

    def regroup(self, groups: Sequence[Sequence[int] | Tensor]) -> None:
        """Draw from these groups of indices from now on; the whole batch keeps its size.

        Where there are more groups than samples in it, a step draws from some of them. Groups that
        are as before go on where they are.
        """
        found = [torch.as_tensor(group, device="cpu") for group in groups]
        if not all(len(group) for group in found):
            raise ValueError("a group without samples cannot be drawn from")
        if len(found) == len(self.groups) and all(map(torch.equal, found, self.groups)):
            return
        self.generation += 1
        self.groups = found
        self._start()

    def fresh_copy(self) -> "Stream":
        """Batches from the source domains, from the beginning; this stream stays where it is."""
        return Stream(
            self.samples,
            batch=self.total // self.per_step,
            seed=self.seed,
            per_step=self.per_step,
            balance=self.balance,
        )

    def __iter__(self) -> "Stream":
        return self

    def __next__(self) -> list[Batch]:
        block, row = divmod(self.drawn, STEPS_PER_BLOCK)
        if row == 0 or self.table is None:
            drawn = self._drawn_block(block)
            self.table, self.group = (part.to(self.samples.y.device) for part in drawn)
        generator = None
        if self.samples.augment is not None:
            place = derive_seed(self.seed, "augment", self.generation, self.drawn)
            generator = torch.Generator().manual_seed(place)
        self.drawn += 1
        if self.samples.x.shape.numel() >= LARGE_SAMPLE_VALUES:
            parts = (part[row].split(self.sizes) for part in (self.table, self.group))
            return [self.samples.batch(i, generator, g) for i, g in zip(*parts, strict=True)]
        pooled = self.samples.batch(self.table[row], generator, self.group[row])
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
        groups = len(self.groups)
        total = self.total
        self.width = max(1, min(total, groups * self.per_step // self.domains))
        self.sizes = [total // self.width + (i < total % self.width) for i in range(self.width)]
        self.drawn = 0
        self.passed = [torch.zeros(groups, dtype=torch.int64)]
        self.table = None

    def _drawn_block(self, block: int) -> tuple[Tensor, Tensor]:
        """The indices of a block of batches and the groups they are of, one row a step."""
        if self.width == len(self.groups):
            columns = [
                self._members(i, block * STEPS_PER_BLOCK * size, STEPS_PER_BLOCK * size).view(
                    STEPS_PER_BLOCK, size
                )
                for i, size in enumerate(self.sizes)
            ]
            group = torch.arange(self.width).repeat_interleave(torch.tensor(self.sizes))
            return torch.cat(columns, dim=1), group.expand(STEPS_PER_BLOCK, -1)
        places, before = self._places(block), self._before(block)
        counts = enumerate(places.bincount().tolist())
        table = torch.empty_like(places)
        table[places.argsort(stable=True)] = torch.cat(
            [self._members(group, before[group], count) for group, count in counts if count]
        )
        return table.view(STEPS_PER_BLOCK, -1), places.view(STEPS_PER_BLOCK, -1)

    def _places(self, block: int) -> Tensor:
        """The group of every sample of a block, in rounds through all of them.

        Those that are left when fewer than a step takes are to come wait for another round.
        """
        groups, turns = len(self.groups), len(self.groups) // self.width

        def round_of_all(number: int) -> Tensor:
            return self._order(groups, "groups", number)[: turns * self.width].view(turns, -1)

        chosen = _endless(round_of_all, turns, block * STEPS_PER_BLOCK, STEPS_PER_BLOCK)
        return chosen.repeat_interleave(torch.tensor(self.sizes), dim=1).flatten()

    def _before(self, block: int) -> list[int]:
        """How many samples of each group came before a block."""
        while len(self.passed) <= block:
            places = self._places(len(self.passed) - 1)
            self.passed.append(self.passed[-1] + places.bincount(minlength=len(self.groups)))
        return self.passed[block].tolist()

    def _members(self, group: int, start: int, count: int) -> Tensor:
        """So many samples of a group from a place in its endless order."""
        members = self.groups[group]
        if self.balance:
            return members[self._balanced(group, self.labels[members], start, count)]
        order = partial(self._order, len(members), group)
        return members[_endless(order, len(members), start, count)]

    def _balanced(self, group: int, labels: Tensor, start: int, count: int) -> Tensor:
        """The same with every class in turn, and each class in an endless order of its own."""
        known, label = labels.unique(return_inverse=True)
        classes = len(known)

        def rounds(number: int) -> Tensor:
            generator = self._generator(group, "classes", number)
            return (
                torch.rand(STEPS_PER_BLOCK, classes, generator=generator).argsort(dim=1).flatten()
            )

        turns = _endless(rounds, STEPS_PER_BLOCK * classes, start, count)
        found = torch.empty_like(turns)
        for number in turns.unique().tolist():
            places, members = ((part == number).nonzero().flatten() for part in (turns, label))
            # A class comes once in a round of all classes, so the round counts its samples.
            first = (start + int(places[0])) // classes
            order = partial(self._order, len(members), group, number)
            found[places] = members[_endless(order, len(members), first, len(places))]
        return found

    def _order(self, size: int, *place: int | str) -> Tensor:
        return torch.randperm(size, generator=self._generator(*place))

    def _generator(self, *place: int | str) -> torch.Generator:
        return torch.Generator().manual_seed(derive_seed(self.seed, self.generation, *place))


def _endless(order: Callable[[int], Tensor], size: int, start: int, count: int) -> Tensor:
    """A piece of the endless row that orders of one size make, the first, the second, …."""
    first, skipped = divmod(start, size)
    rounds = -(-(skipped + count) // size)
    row = torch.cat([order(first + number) for number in range(rounds)])
    return row[skipped : skipped + count]
