"""A merge at work: tensor by tensor, piece by piece, from whatever holds the tensors.

Nothing here knows whether they are in memory or in files. What is held at once is the deltas of one
tensor, or of a piece of it where the merge allows that.
"""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from afield.errors import MergeError, SpecError
from afield.merging.checks import (
    KEPT,
    MERGED,
    TensorChange,
    TensorSource,
    TensorSpec,
    nonfinite_delta,
)
from afield.merging.order_statistics import Deltas
from afield.progress import track

__all__ = [
    "MergeFunction",
    "MergeJob",
    "StateDictSource",
    "merge_pieces",
    "required_keywords",
    "scope_of",
]

MergeFunction = Callable[..., Any]
# Entries that are worked on at once where a tensor may come in pieces: what fits in a CPU's cache.
ENTRIES_PER_PIECE = 1 << 18
PASSED_KEYWORDS = ("base", "name", "statistics")


class StateDictSource:
    """A state dict as a source."""

    def __init__(self, tensors: Mapping[str, Tensor], told: str) -> None:
        self.told, self._tensors = told, tensors
        nameless = next((repr(k) for k in tensors if not isinstance(k, str)), None)
        if nameless is not None:
            raise MergeError(f"{told}: the name {nameless} is not a string; give a state dict")
        wrong = next((k for k, v in tensors.items() if not isinstance(v, Tensor)), None)
        if wrong is not None:
            raise MergeError(f"{told}: {wrong} is not a tensor; give a state dict")
        self.specs = {name: TensorSpec(v.dtype, tuple(v.shape)) for name, v in tensors.items()}
        self._last: tuple[str, Tensor] | None = None

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Tensor:
        """Entries of one tensor."""
        if self._last is None or self._last[0] != name:
            # Kept for its other pieces: where entries lie in another order, this is a copy.
            self._last = name, self._tensors[name].detach().reshape(-1)
        return self._last[1][start:stop]


@dataclass
class MergeJob:
    """All that is known of a merge before its first number is read."""

    how: str
    merge: MergeFunction
    params: dict[str, Any]
    scale: float
    base: TensorSource
    experts: Sequence[TensorSource]
    statistics: Sequence[TensorSource]
    rules: dict[str, str]
    _of_pieces: MergeFunction | None = field(default=None, repr=False)

    @property
    def counts(self) -> dict[str, int]:
        """How many tensors each rule is for."""
        found = list(self.rules.values())
        return {rule: found.count(rule) for rule in sorted(set(found))}

    @cached_property
    def numbers(self) -> dict[str, torch.dtype]:
        """What each tensor is computed in; order statistics of a model need one for all."""
        found = {name: _number(name, (self.base, *self.experts)) for name in self.rules}
        if scope_of(self.merge) == "model" and torch.float64 in found.values():
            return dict.fromkeys(found, torch.float64)
        return found

    def merge_function(self, name: str) -> tuple[MergeFunction, bool]:
        """What merges the deltas of one tensor, and whether these may come in pieces."""
        if self.rules[name] != MERGED:
            return _mean, True
        if scope_of(self.merge) != "model":
            return partial(self.merge, **self.params), scope_of(self.merge) == "entry"
        if self._of_pieces is None:
            names = [name for name, rule in self.rules.items() if rule == MERGED]
            size = sum(self.base.specs[name].size for name in names)
            deltas = Deltas(len(self.experts), size, partial(_stream, self, names))
            self._of_pieces = self.merge(deltas, **self.params)
        return self._of_pieces, True

    def check_on_zeros(self) -> None:
        """Merge zeros: settings and numbers of experts that cannot work fail before reading."""
        zeros = torch.zeros(len(self.experts), 2, 2)
        if scope_of(self.merge) == "model":
            flat = zeros.flatten(1)
            self.merge(Deltas(len(zeros), flat.shape[1], lambda: [flat]), **self.params)
            return
        handed = {"base": zeros[0], "name": "", "statistics": zeros}
        self.merge(
            zeros, **self.params, **{need: handed[need] for need in required_keywords(self.merge)}
        )


def merge_pieces(
    job: MergeJob, name: str, on_change: Callable[[TensorChange], None]
) -> Iterator[Tensor]:
    """The result's entries of one tensor, in the base's type, as vectors one after the other.

    At the end it tells how far the experts have moved.
    """
    if job.rules[name].startswith(KEPT):
        yield from _kept_pieces(job, name, on_change)
        return
    spec, (merge, cut) = job.base.specs[name], job.merge_function(name)
    # A running variance may not leave the range of those of base and experts.
    scale = job.scale if "running" not in job.rules[name] else min(max(job.scale, 0.0), 1.0)
    sizes = torch.zeros(1 + len(job.experts), dtype=torch.float64)
    alike = frozenset(combinations(range(len(job.experts)), 2))
    step = ENTRIES_PER_PIECE if cut else spec.size
    shape = (-1,) if cut else spec.shape or (1,)
    for start in range(0, spec.size, step):
        base, deltas, squares = _read(job, name, start, start + step)
        finite = math.isfinite(_size(base))
        sizes += torch.tensor([_size(base) if finite else 0.0, *squares], dtype=sizes.dtype)
        alike = _still_alike(alike, deltas, squares)
        if not finite and not deltas.any():
            # A mask of -inf, say, which no merge can compute with, nor has to.
            yield base.to(spec.dtype, copy=True)
            continue
        try:
            handed = _handed(job, name, base.view(shape), start, step)
            merged = merge(deltas.view(len(deltas), *shape), **handed)
        except MergeError as error:
            raise MergeError(f"{name}: {error}") from None
        yield _moved(job, name, base, merged.reshape(-1), scale)
    norm, *norms = sizes.sqrt().tolist()
    on_change(TensorChange(name, norm, tuple(norms), alike=alike))


def _kept_pieces(
    job: MergeJob, name: str, tell: Callable[[TensorChange], None]
) -> Iterator[Tensor]:
    """The base's own entries; in how many an expert has others is told."""
    base, changed = job.base.read(name), []
    for expert in job.experts:
        alike = expert.specs.get(name) == job.base.specs[name]
        changed.append(float((expert.read(name).to(base.device) != base).sum()) if alike else 0.0)
    yield base.clone()
    tell(TensorChange(name, float(len(base)), tuple(changed), kept=True))


def _still_alike(
    pairs: frozenset[tuple[int, int]], deltas: Tensor, squares: Sequence[float]
) -> frozenset[tuple[int, int]]:
    """Those pairs of experts that are the same in these entries too."""
    return frozenset(
        (i, j)
        for i, j in pairs
        if squares[i] == squares[j] == 0 or torch.equal(deltas[i], deltas[j])
    )


def _stream(job: MergeJob, names: Sequence[str]) -> Iterator[Tensor]:
    """All deltas of these tensors, in pieces."""
    for name in track(names, f"{job.how}: all deltas", len(names)):
        for start in range(0, job.base.specs[name].size, ENTRIES_PER_PIECE):
            yield _read(job, name, start, start + ENTRIES_PER_PIECE)[1]


def _read(job: MergeJob, name: str, start: int, stop: int) -> tuple[Tensor, Tensor, list[float]]:
    """Entries of the base, the experts' deltas and their squares, in the type to compute in."""
    number = job.numbers[name]
    base = job.base.read(name, start, stop).to(number)
    deltas, squares = base.new_empty(len(job.experts), len(base)), []
    for delta, expert in zip(deltas, job.experts, strict=True):
        entries = expert.read(name, start, stop).to(base.device, number)
        torch.sub(entries, base, out=delta)
        squares.append(_size(delta))
        if not math.isfinite(squares[-1]):
            delta.copy_(nonfinite_delta(name, base, entries, (job.base.told, expert.told)))
            squares[-1] = _size(delta)
    return base, deltas, squares


def _moved(job: MergeJob, name: str, base: Tensor, merged: Tensor, scale: float) -> Tensor:
    """Base plus so much of the merged delta, in the base's type."""
    if not math.isfinite(_size(merged)) and not merged.isfinite().all():
        raise MergeError(f"{name}: {job.how} gives numbers that are not finite for it")
    dtype = job.base.specs[name].dtype
    moved = base.add(merged, alpha=scale)
    if dtype == moved.dtype:
        return moved
    found = moved.to(dtype)
    if (~found.isfinite() & moved.isfinite()).any():
        raise MergeError(f"{name}: the result is too large for {dtype}; take a smaller scale")
    return found


def _handed(job: MergeJob, name: str, base: Tensor, start: int, step: int) -> dict[str, Any]:
    """What the merge asks for by a keyword without a default."""
    if job.rules[name] != MERGED or scope_of(job.merge) == "model":
        return {}
    known = {
        "base": lambda: base,
        "name": lambda: name,
        "statistics": lambda: _stacked(job, name, start, start + step, base.device),
    }
    return {need: known[need]() for need in required_keywords(job.merge)}


def _stacked(job: MergeJob, name: str, start: int, stop: int, device: torch.device) -> Tensor:
    """The experts' statistics of one tensor, or of some entries of it."""
    parts = []
    for source in job.statistics:
        if scope_of(job.merge) == "entry":
            part = source.read(name, start, stop)
        else:
            part = source.read(name).view(source.specs[name].shape)
        parts.append(part.to(device, job.numbers[name]))
    try:
        return torch.stack(parts)
    except RuntimeError:
        raise MergeError("its statistics have different shapes") from None


@lru_cache
def required_keywords(merge: MergeFunction) -> tuple[str, ...]:
    """The keywords without a default of a merge: what is to be handed over."""
    keywords = inspect.signature(merge).parameters.values()
    found = tuple(p.name for p in keywords if p.kind is p.KEYWORD_ONLY and p.default is p.empty)
    if not set(found) <= set(PASSED_KEYWORDS):
        raise SpecError(
            f"{merge.__name__}: a setting needs a default; handed over are "
            f"{', '.join(PASSED_KEYWORDS)}"
        )
    return found


def scope_of(merge: MergeFunction) -> Any:
    """What a merge is a function of."""
    return merge.scope  # type: ignore[attr-defined]


def _number(name: str, sources: Sequence[TensorSource]) -> torch.dtype:
    wide = any(s.specs[name].dtype == torch.float64 for s in sources if name in s.specs)
    return torch.float64 if wide else torch.float32


def _mean(deltas: Tensor) -> Tensor:
    return deltas.mean(0)


def _size(values: Tensor) -> float:
    """Sum of the squares; it is finite if all of them are, and not too large."""
    return float(torch.dot(values, values))
