"""Endless batches for training, drawn without replacement from groups of samples.

A stream draws from every group (the source domains, unless a method regroups) until the group is
used up, then shuffles it again. A step may also draw from some of the groups only: it takes none of
them twice, and over many steps all come equally often. The order of the samples and their
augmentation depend on the seed and the position alone, so a snapshot stores only the position.

Images of the decode cache take a while to read, crop and color. In training, a thread does so for
the next step during the present one. The batches are the same.

Texts are padded to the longest text of their step. To keep this short, texts of similar length are
put into the same step: of the samples of some consecutive steps, in an order that the seed fixes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from afield.data.samples import Batch, PooledBatches, Samples
from afield.seeds import derive_seed

# Number of steps whose samples are drawn together, so that a step only looks up a row of a table.
STEPS_PER_BLOCK = 64
# Number of steps among which texts are exchanged; it divides STEPS_PER_BLOCK.
BUCKET_STEPS = 16


class Stream:
    """Endless batches: every step yields one from each group, or from `per_step` of them.

    With `balance`, all classes of a group come equally often: rare classes repeat sooner. If
    `pooled`, the `batch` samples of a step are drawn from all domains together. They come as one
    batch for each domain that is among them, so that methods still know the domains. A `batch` of
    0 takes all samples of every group in every step, `repeats` times.
    """

    def __init__(
        self,
        samples: Samples,
        *,
        batch: int,
        seed: int,
        per_step: int = 0,
        balance: bool = False,
        pooled: bool = False,
        repeats: int = 1,
    ) -> None:
        self.samples = samples
        self.repeats = 0 if batch else repeats
        self.seed = seed
        self.balance = balance
        self.labels = samples.y.cpu()
        self.generation = 0
        self.pooled = pooled
        self.domain = samples.domain.cpu()
        self.groups = [torch.arange(len(samples))] if pooled else samples.by_domain()
        self.domains = len(self.groups)
        self.per_step = min(per_step, self.domains) or self.domains
        self.total = batch * self.per_step or repeats * len(samples)
        self.table: Tensor | None = None
        self.widths: list[int] = []
        self.thread: ThreadPoolExecutor | None = None
        self.ahead: Future[Sequence[Batch]] | None = None
        self._restart()

    @contextmanager
    def reading_ahead(self) -> Iterator[None]:
        """Let a thread make the batches of the next step, if they take time.

        The position of the stream counts only the batches that were returned.
        """
        if not self.samples.take_time:
            yield
            return
        count = torch.get_num_threads()
        with ThreadPoolExecutor(1, "next batch", torch.set_num_threads, (count,)) as thread:
            self.thread = thread
            try:
                yield
            finally:
                self._forget_ahead()
                self.thread = None

    def _forget_ahead(self) -> None:
        """Wait for the thread, and drop the batches that it made."""
        if self.ahead is not None:
            self.ahead.exception()
            self.ahead = None

    def regroup(self, groups: Sequence[Sequence[int] | Tensor]) -> None:
        """Draw from these groups of indices from now on; a step keeps its number of samples.

        If there are more groups than samples in a step, each step draws from some of them. If the
        groups are the current ones, the stream continues where it is.
        """
        indices = [torch.as_tensor(group, device="cpu") for group in groups]
        if not all(len(group) for group in indices):
            raise ValueError("a group without samples cannot be drawn from")
        if len(indices) == len(self.groups) and all(map(torch.equal, indices, self.groups)):
            return
        self._forget_ahead()
        self.generation += 1
        self.groups = indices
        self._restart()

    def fresh_copy(self) -> "Stream":
        """New stream over the source domains, from its beginning; this one keeps its position."""
        return Stream(
            self.samples,
            batch=0 if self.repeats else self.total // self.per_step,
            seed=self.seed,
            per_step=self.per_step,
            balance=self.balance,
            pooled=self.pooled,
            repeats=self.repeats or 1,
        )

    def __iter__(self) -> "Stream":
        return self

    def __next__(self) -> Sequence[Batch]:
        batches = self._batches(self.drawn) if self.ahead is None else self.ahead.result()
        self.drawn += 1
        if self.thread is not None:
            self.ahead = self.thread.submit(self._batches, self.drawn)
        return batches

    def _batches(self, position: int) -> Sequence[Batch]:
        """The batches of a step; of steps that follow each other, a block is drawn once."""
        block, row = divmod(position, STEPS_PER_BLOCK)
        if row == 0 or self.table is None:
            tables = self._draw_block(block)
            if self.pooled and not self.generation:
                tables = self._sort_by_domain(tables[0])
            if self.samples.x.is_tokens:
                self.widths = self.samples.x.lengths[tables[0]].amax(dim=1).tolist()
            self.table, self.group = (table.to(self.samples.y.device) for table in tables)
        generator = None
        if self.samples.augment is not None:
            seed = derive_seed(self.seed, "augment", self.generation, position)
            generator = torch.Generator().manual_seed(seed)
        sizes = self.row_sizes[row] if self.row_sizes else self.sizes
        if self.samples.are_large:
            # In pieces small enough for the allocator to reuse; others together, in fewer calls.
            columns = (table[row].split(sizes) for table in (self.table, self.group))
            return [self.samples.batch(i, generator, g) for i, g in zip(*columns, strict=True)]
        width = self.widths[row] if self.widths else None
        pooled = self.samples.batch(self.table[row], generator, self.group[row], width)
        return PooledBatches(pooled, sizes)

    def state_dict(self) -> dict[str, Any]:
        """Position of the stream."""
        return {"generation": self.generation, "drawn": self.drawn, "groups": self.groups}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved position."""
        self._forget_ahead()
        self.generation, self.groups = state["generation"], state["groups"]
        self._restart()
        self.drawn = state["drawn"]

    def _restart(self) -> None:
        """Start at the beginning of the current groups."""
        groups = len(self.groups)
        total = self.total
        self.width = max(1, min(total, groups * self.per_step // self.domains))
        self.sizes = [total // self.width + (i < total % self.width) for i in range(self.width)]
        if self.repeats:
            self.width, self.sizes = groups, [self.repeats * len(group) for group in self.groups]
        self.drawn = 0
        self.counts_before = [torch.zeros(groups, dtype=torch.int64)]
        self.table = None
        self.row_sizes: list[list[int]] = []
        self.widths = []

    def _draw_block(self, block: int) -> tuple[Tensor, Tensor]:
        """Sample indices of a block of steps and the group of each, with one row per step."""
        if self.width == len(self.groups):
            columns = [
                self._members(i, block * STEPS_PER_BLOCK * size, STEPS_PER_BLOCK * size).view(
                    STEPS_PER_BLOCK, size
                )
                for i, size in enumerate(self.sizes)
            ]
            if self.samples.x.is_tokens and not self.balance:
                columns = self._bucket(block, columns)
            group = torch.arange(self.width).repeat_interleave(torch.tensor(self.sizes))
            return torch.cat(columns, dim=1), group.expand(STEPS_PER_BLOCK, -1)
        group, start = self._block_groups(block), self._block_starts(block)
        counts = enumerate(group.bincount().tolist())
        table = torch.empty_like(group)
        table[group.argsort(stable=True)] = torch.cat(
            [self._members(number, start[number], count) for number, count in counts if count]
        )
        return table.view(STEPS_PER_BLOCK, -1), group.view(STEPS_PER_BLOCK, -1)

    def _bucket(self, block: int, columns: Sequence[Tensor]) -> list[Tensor]:
        """Exchange texts among the steps of a block, so that those of a step are similarly long.

        `columns` have one row per step. Every group keeps its samples in every window of steps,
        and the steps of a window come in a random order. A window is not longer than the smallest
        group lasts: the copies of a text would come into the same step.
        """
        rounds = [len(g) // c.shape[1] for g, c in zip(self.groups, columns, strict=True)]
        window = max((w for w in (1, 2, 4, 8, BUCKET_STEPS) if w <= min(rounds)), default=1)
        if window == 1:
            return list(columns)
        windows = STEPS_PER_BLOCK // window
        generator = self._generator("buckets", block)
        order = torch.rand(windows, window, generator=generator).argsort(dim=1)
        order = (order + window * torch.arange(windows)[:, None]).flatten()
        bucketed = []
        for column in columns:
            texts = column.reshape(windows, -1)
            by_length = self.samples.x.lengths[texts].argsort(dim=1, stable=True)
            bucketed.append(texts.gather(1, by_length).view_as(column)[order])
        return bucketed

    def _sort_by_domain(self, table: Tensor) -> tuple[Tensor, Tensor]:
        """The samples of each step in the order of their domains, and the domain of each."""
        domain, order = self.domain[table].sort(dim=1, stable=True)
        counts = [row.bincount().tolist() for row in domain]
        self.row_sizes = [[size for size in sizes if size] for sizes in counts]
        return table.gather(1, order), domain

    def _block_groups(self, block: int) -> Tensor:
        """Group of every sample of a block, in rounds through all groups.

        The groups left at the end of a round, too few to fill a step, are skipped in that round.
        """
        groups, steps = len(self.groups), len(self.groups) // self.width

        def shuffled_round(number: int) -> Tensor:
            return self._order(groups, "groups", number)[: steps * self.width].view(steps, -1)

        chosen = _endless(shuffled_round, steps, block * STEPS_PER_BLOCK, STEPS_PER_BLOCK)
        return chosen.repeat_interleave(torch.tensor(self.sizes), dim=1).flatten()

    def _block_starts(self, block: int) -> list[int]:
        """Number of samples of each group that were drawn before a block."""
        while len(self.counts_before) <= block:
            group = self._block_groups(len(self.counts_before) - 1)
            counts = group.bincount(minlength=len(self.groups))
            self.counts_before.append(self.counts_before[-1] + counts)
        return self.counts_before[block].tolist()

    def _members(self, group: int, start: int, count: int) -> Tensor:
        """Take `count` samples of a group from position `start` of its endless order."""
        members = self.groups[group]
        if self.balance:
            return members[self._balanced(group, self.labels[members], start, count)]
        order = partial(self._order, len(members), group)
        return members[_endless(order, len(members), start, count)]

    def _balanced(self, group: int, labels: Tensor, start: int, count: int) -> Tensor:
        """Take samples class by class in turn; each class has its own endless order."""
        unique, label = labels.unique(return_inverse=True)
        classes = len(unique)

        def shuffled_classes(number: int) -> Tensor:
            generator = self._generator(group, "classes", number)
            return (
                torch.rand(STEPS_PER_BLOCK, classes, generator=generator).argsort(dim=1).flatten()
            )

        turns = _endless(shuffled_classes, STEPS_PER_BLOCK * classes, start, count)
        drawn = torch.empty_like(turns)
        for number in turns.unique().tolist():
            positions, members = ((x == number).nonzero().flatten() for x in (turns, label))
            # Each class comes once per round, so the number of the round counts its samples.
            first = (start + int(positions[0])) // classes
            order = partial(self._order, len(members), group, number)
            drawn[positions] = members[_endless(order, len(members), first, len(positions))]
        return drawn

    def _order(self, size: int, *key: int | str) -> Tensor:
        return torch.randperm(size, generator=self._generator(*key))

    def _generator(self, *key: int | str) -> torch.Generator:
        return torch.Generator().manual_seed(derive_seed(self.seed, self.generation, *key))


def _endless(order: Callable[[int], Tensor], size: int, start: int, count: int) -> Tensor:
    """Slice of the endless sequence order(0), order(1), …, each of them `size` long."""
    first, skipped = divmod(start, size)
    rounds = -(-(skipped + count) // size)
    sequence = torch.cat([order(first + number) for number in range(rounds)])
    return sequence[skipped : skipped + count]
