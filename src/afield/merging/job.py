"""Planning a merge and carrying it out: tensor by tensor, piece by piece, from any `TensorSource`.

Nothing here depends on whether tensors are in memory or in files. At any time only the deltas of
one tensor are held, or of a piece of it if the merge allows that. `merge` merges state dicts in
memory.
"""

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from afield import registry
from afield.errors import MergeError, SpecError
from afield.hyperparameters import defaults, validate_values
from afield.merging.checks import (
    TensorChange,
    check_compatible,
    check_counts,
    check_statistics,
    merge_warnings,
    nonfinite_delta,
    still_identical,
)
from afield.merging.order_statistics import Deltas, TensorPieces
from afield.merging.scopes import (
    KEPT,
    MERGED,
    MergeFunction,
    TensorSource,
    TensorSpec,
    piecewise,
    required_keywords,
    scope_of,
    tensor_action,
)
from afield.progress import track

log = logging.getLogger(__name__)

# Entries merged at once if a tensor may be split: few enough to fit in a CPU's cache.
ENTRIES_PER_PIECE = 1 << 18
# Larger tensors are merged in pieces also by merges of whole tensors that have a form for it.
MAX_WHOLE_ENTRIES = 1 << 24


@dataclass
class MergeJob:
    """A merge with its inputs, its settings and what happens to each tensor."""

    how: str
    merge: MergeFunction
    params: dict[str, Any]
    scale: float
    base: TensorSource
    experts: Sequence[TensorSource]
    statistics: Sequence[TensorSource]
    actions: dict[str, str]
    device: str = "cpu"
    _merge_model_piece: MergeFunction | None = field(default=None, repr=False)

    @property
    def counts(self) -> dict[str, int]:
        """The number of tensors for each action."""
        actions = list(self.actions.values())
        return {action: actions.count(action) for action in sorted(set(actions))}

    @cached_property
    def compute_dtypes(self) -> dict[str, torch.dtype]:
        """The type each tensor is computed in; order statistics of a model need one for all."""
        dtypes = {name: _compute_dtype(name, (self.base, *self.experts)) for name in self.actions}
        if scope_of(self.merge) == "model" and torch.float64 in dtypes.values():
            return dict.fromkeys(dtypes, torch.float64)
        return dtypes

    def merge_function(self, name: str) -> tuple[MergeFunction, bool]:
        """The function that merges the deltas of a tensor, and whether it accepts pieces."""
        if self.actions[name] != MERGED:
            return _mean, True
        in_pieces = piecewise(self.merge)
        if in_pieces is not None and self.base.specs[name].size > MAX_WHOLE_ENTRIES:
            return in_pieces(self._tensor_pieces(name), name=name, **self.params), True
        if scope_of(self.merge) != "model":
            return partial(self.merge, **self.params), scope_of(self.merge) == "entry"
        if self._merge_model_piece is None:
            names = [name for name, action in self.actions.items() if action == MERGED]
            size = sum(self.base.specs[name].size for name in names)
            deltas = Deltas(len(self.experts), size, partial(_stream_deltas, self, names))
            self._merge_model_piece = self.merge(deltas, **self.params)
        return self._merge_model_piece, True

    def _tensor_pieces(self, name: str) -> TensorPieces:
        size = self.base.specs[name].size
        starts = range(0, size, ENTRIES_PER_PIECE)
        return TensorPieces(
            len(self.experts),
            size,
            lambda: (_read_deltas(self, name, at, at + ENTRIES_PER_PIECE)[:2] for at in starts),
        )

    def check_on_zeros(self) -> None:
        """Merge zeros, so that settings that cannot work fail before anything is read."""
        zeros = torch.zeros(len(self.experts), 2, 2)
        if scope_of(self.merge) == "model":
            rows = zeros.flatten(1)
            self.merge(Deltas(len(zeros), rows.shape[1], lambda: [rows]), **self.params)
            return
        supplied = {"base": zeros[0], "name": "", "statistics": zeros}
        keywords = {name: supplied[name] for name in required_keywords(self.merge)}
        self.merge(zeros, **self.params, **keywords)


def plan_merge(
    how: str,
    base: TensorSource,
    experts: Sequence[TensorSource],
    *,
    scale: float = 1.0,
    statistics: Sequence[TensorSource] = (),
    params: Mapping[str, Any] | None = None,
    device: str = "cpu",
) -> MergeJob:
    """Decide what happens to each tensor; raise before reading if the merge cannot work."""
    merge: MergeFunction = registry.find("merges", how)
    settings = {**defaults(merge), **validate_values(merge, params or {})}
    settings = {name: settings[name] for name in defaults(merge)}
    if not math.isfinite(scale):
        raise SpecError(f"scale={scale}: not a finite number")
    check_counts(how, merge, experts=len(experts), statistics=len(statistics))
    actions = _actions(merge, base, statistics)
    check_statistics(base, statistics, actions, same_shape=scope_of(merge) == "entry")
    for expert in experts:
        for warning in check_compatible(base, expert, actions):
            log.warning("%s", warning)
    if MERGED not in actions.values():
        log.warning("%s: no tensor of %s fits this merge: all are averaged", how, base.label)
    job = MergeJob(how, merge, settings, scale, base, experts, statistics, actions, device)
    job.check_on_zeros()
    return job


def _actions(
    merge: MergeFunction, base: TensorSource, statistics: Sequence[TensorSource]
) -> dict[str, str]:
    """What happens to each tensor of the base; at least one must be merged or averaged."""
    if not base.specs:
        raise MergeError(f"{base.label}: no tensors in it")
    actions = {}
    for name, spec in base.specs.items():
        has_statistics = all(name in source.specs for source in statistics)
        actions[name] = tensor_action(scope_of(merge), name, spec, has_statistics=has_statistics)
    if all(action.startswith(KEPT) for action in actions.values()):
        raise MergeError(f"{base.label}: nothing to merge, it has no floating-point numbers")
    return actions


def merge_pieces(
    job: MergeJob, name: str, on_change: Callable[[TensorChange], None]
) -> Iterator[Tensor]:
    """Yield the merged entries of a tensor, in the base's type, as consecutive vectors.

    At the end `on_change` receives how far the experts have moved from the base.
    """
    if job.actions[name].startswith(KEPT):
        yield from _kept_pieces(job, name, on_change)
        return
    spec, (merge, splits) = job.base.specs[name], job.merge_function(name)
    # A running variance may not leave the range of the base's and the experts' variances.
    scale = job.scale if "running" not in job.actions[name] else min(max(job.scale, 0.0), 1.0)
    squares = torch.zeros(1 + len(job.experts), dtype=torch.float64)
    identical = frozenset(combinations(range(len(job.experts)), 2))
    step = ENTRIES_PER_PIECE if splits else spec.size
    shape = (-1,) if splits else spec.shape or (1,)
    for start in range(0, spec.size, step):
        base, deltas, delta_squares = _read_deltas(job, name, start, start + step)
        base_square = _sum_of_squares(base)
        finite = math.isfinite(base_square)
        finite_square = base_square if finite else 0.0
        squares += torch.tensor([finite_square, *delta_squares], dtype=squares.dtype)
        identical = still_identical(identical, deltas, delta_squares)
        if not finite and not deltas.any():
            # For example a mask of -inf, which no merge can or needs to compute with.
            yield base.to(spec.dtype, copy=True)
            continue
        try:
            supplied = _supplied_keywords(job, name, base.view(shape), start, step)
            merged = merge(deltas.view(len(deltas), *shape), **supplied)
        except MergeError as error:
            raise MergeError(f"{name}: {error}") from None
        yield _add_delta(job, name, base, merged.reshape(-1), scale)
    base_norm, *norms = squares.sqrt().tolist()
    on_change(TensorChange(name, base_norm, tuple(norms), identical_pairs=identical))


def log_merge_warnings(job: MergeJob, changes: Sequence[TensorChange]) -> None:
    """Log what is doubtful about the experts, after they were read."""
    labels = [expert.label for expert in job.experts]
    for warning in merge_warnings(changes, job.base.label, labels):
        log.warning("%s", warning)


def _kept_pieces(
    job: MergeJob, name: str, on_change: Callable[[TensorChange], None]
) -> Iterator[Tensor]:
    """The base's entries; `on_change` receives in how many of them each expert differs."""
    base, changed = job.base.read(name), []
    for expert in job.experts:
        comparable = expert.specs.get(name) == job.base.specs[name]
        differs = expert.read(name).to(base.device) != base if comparable else torch.zeros(1)
        changed.append(float(differs.sum()))
    yield base.clone()
    on_change(TensorChange(name, float(len(base)), tuple(changed), kept=True))


def _stream_deltas(job: MergeJob, names: Sequence[str]) -> Iterator[Tensor]:
    """The deltas of several tensors, in pieces."""
    for name in track(names, f"{job.how}: all deltas", len(names)):
        for start in range(0, job.base.specs[name].size, ENTRIES_PER_PIECE):
            yield _read_deltas(job, name, start, start + ENTRIES_PER_PIECE)[1]


def _read_deltas(
    job: MergeJob, name: str, start: int, stop: int
) -> tuple[Tensor, Tensor, list[float]]:
    """The base's entries, the experts' deltas and the sums of their squares, in compute type."""
    dtype = job.compute_dtypes[name]
    base = job.base.read(name, start, stop).to(job.device, dtype)
    deltas, squares = base.new_empty(len(job.experts), len(base)), []
    for delta, expert in zip(deltas, job.experts, strict=True):
        entries = expert.read(name, start, stop).to(base.device, dtype)
        torch.sub(entries, base, out=delta)
        squares.append(_sum_of_squares(delta))
        if not math.isfinite(squares[-1]):
            delta.copy_(nonfinite_delta(name, base, entries, (job.base.label, expert.label)))
            squares[-1] = _sum_of_squares(delta)
    return base, deltas, squares


def _add_delta(job: MergeJob, name: str, base: Tensor, merged: Tensor, scale: float) -> Tensor:
    """Base + scale · merged delta, in the base's type."""
    if not math.isfinite(_sum_of_squares(merged)) and not merged.isfinite().all():
        raise MergeError(f"{name}: {job.how} gives numbers that are not finite")
    dtype = job.base.specs[name].dtype
    moved = base.add(merged, alpha=scale)
    if dtype == moved.dtype:
        return moved
    rounded = moved.to(dtype)
    if (~rounded.isfinite() & moved.isfinite()).any():
        raise MergeError(f"{name}: the result is too large for {dtype}; use a smaller scale")
    return rounded


def _supplied_keywords(
    job: MergeJob, name: str, base: Tensor, start: int, step: int
) -> dict[str, Any]:
    """The values of the merge's keywords without a default."""
    if job.actions[name] != MERGED or scope_of(job.merge) == "model":
        return {}
    values = {
        "base": lambda: base,
        "name": lambda: name,
        "statistics": lambda: _stack_statistics(job, name, start, start + step, base.device),
    }
    return {keyword: values[keyword]() for keyword in required_keywords(job.merge)}


def _stack_statistics(
    job: MergeJob, name: str, start: int, stop: int, device: torch.device
) -> Tensor:
    """The experts' statistics of a tensor, or of some of its entries."""
    rows = []
    for source in job.statistics:
        if scope_of(job.merge) == "entry":
            values = source.read(name, start, stop)
        else:
            values = source.read(name).view(source.specs[name].shape)
        rows.append(values.to(device, job.compute_dtypes[name]))
    try:
        return torch.stack(rows)
    except RuntimeError:
        raise MergeError("the experts' statistics have different shapes") from None


def _compute_dtype(name: str, sources: Sequence[TensorSource]) -> torch.dtype:
    wide = any(s.specs[name].dtype == torch.float64 for s in sources if name in s.specs)
    return torch.float64 if wide else torch.float32


def _mean(deltas: Tensor) -> Tensor:
    return deltas.mean(0)


def _sum_of_squares(values: Tensor) -> float:
    """It is finite if all values are finite and not too large."""
    return float(torch.dot(values, values))


class StateDictSource:
    """A state dict as a `TensorSource`."""

    def __init__(self, tensors: Mapping[str, Tensor], label: str) -> None:
        self.label, self._tensors = label, tensors
        nameless = next((repr(k) for k in tensors if not isinstance(k, str)), None)
        if nameless is not None:
            raise MergeError(f"{label}: the name {nameless} is not a string; give a state dict")
        wrong = next((k for k, v in tensors.items() if not isinstance(v, Tensor)), None)
        if wrong is not None:
            raise MergeError(f"{label}: {wrong} is not a tensor; give a state dict")
        self.specs = {name: TensorSpec(v.dtype, tuple(v.shape)) for name, v in tensors.items()}
        self._last: tuple[str, Tensor] | None = None

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Tensor:
        """Entries `start` to `stop` of a tensor, flattened."""
        if self._last is None or self._last[0] != name:
            # Kept for the other pieces: reshaping copies a tensor that is not contiguous.
            self._last = name, self._tensors[name].detach().reshape(-1)
        return self._last[1][start:stop]


def merge(
    how: str,
    base: Mapping[str, Tensor],
    experts: Sequence[Mapping[str, Tensor]],
    *,
    scale: float = 1.0,
    statistics: Sequence[Mapping[str, Tensor]] | None = None,
    **params: Any,
) -> dict[str, Tensor]:
    """Merge state dicts: base + scale · merged delta, with the base's names, types and shapes.

    >>> base, expert = {"w": torch.zeros(2)}, {"w": torch.ones(2)}
    >>> merge("task_arithmetic", base, [expert, expert], scale=0.3)
    {'w': tensor([0.6000, 0.6000])}

    Parameters
    ----------
    how
        Name of the merge; see ``afield list merges``.
    base
        State dict of the model from which all experts were fine-tuned.
    experts
        State dicts of the fine-tuned models.
    scale
        How far to move from the base along the merged delta.
    statistics
        For merges that need statistics of data (`fisher`, `regmean`): one mapping of tensors for
        each expert.
    params
        Settings of the merge.
    """
    job = plan_merge(
        how,
        StateDictSource(base, "base"),
        [StateDictSource(expert, f"expert {i}") for i, expert in enumerate(experts, start=1)],
        scale=scale,
        statistics=[
            StateDictSource(tensors, f"statistics {i}")
            for i, tensors in enumerate(statistics or (), start=1)
        ],
        params=params,
    )
    merged: dict[str, Tensor] = {}
    changes: list[TensorChange] = []
    for name, spec in job.base.specs.items():
        pieces = list(merge_pieces(job, name, changes.append))
        merged[name] = (torch.cat(pieces) if len(pieces) != 1 else pieces[0]).view(spec.shape)
    log_merge_warnings(job, changes)
    return merged
