"""Planning a merge and carrying it out: tensor by tensor, piece by piece, from any `TensorSource`.

Nothing here depends on whether tensors are in memory or in files. At any time only the deltas of
one tensor are held, or of a piece of it if the merge allows that. `merge` merges state dicts in
memory.
"""

import logging
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import combinations
from typing import Any, Literal

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
from afield.merging.core_space import Cores, rotates, span
from afield.merging.order_statistics import Deltas, TensorPieces
from afield.merging.scopes import (
    KEPT,
    LEFT,
    MERGED,
    UNCHANGED,
    DeltaSource,
    LowRankDelta,
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

# Where adapters are merged: as full matrices, in the space that they span, or there if that gives
# the same.
Space = Literal["auto", "full", "core"]

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
    # Factors of the experts' deltas.
    weights: Sequence[float] = ()
    # Whether low-rank deltas are merged in the space that they span.
    in_core_space: bool = False
    # The type of the result's floating-point numbers; None for that of the base.
    dtype: torch.dtype | None = None
    # Jobs of the tensors that are merged in another way.
    overrides: Sequence["MergeJob"] = ()
    _merge_model_piece: MergeFunction | None = field(default=None, repr=False)
    _cores: dict[str, Cores | None] = field(default_factory=dict, repr=False)

    @property
    def counts(self) -> dict[str, int]:
        """The number of tensors for each action."""
        jobs = (self, *self.overrides)
        actions = [action for job in jobs for action in job.actions.values()]
        return {action: actions.count(action) for action in sorted(set(actions))}

    def owner(self, name: str) -> "MergeJob":
        """The job that merges a tensor: this one, or one of the overrides."""
        return next((job for job in self.overrides if name in job.actions), self)

    def acts_on(self, name: str) -> bool:
        """Whether a tensor is merged or averaged; others stay as in the base."""
        owner = self.owner(name)
        return name in owner.actions and not owner.actions[name].startswith(KEPT)

    def result_spec(self, name: str) -> TensorSpec:
        """The type and shape of a tensor of the result."""
        spec = self.base.specs[name]
        is_changed = self.dtype is not None and spec.dtype.is_floating_point
        return TensorSpec(self.dtype, spec.shape) if is_changed and self.dtype else spec

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
        is_large = self.base.specs[name].size > MAX_WHOLE_ENTRIES
        if in_pieces is not None and is_large and not self.in_core_space:
            return in_pieces(self._tensor_pieces(name), name=name, **self.params), True
        if scope_of(self.merge) != "model":
            return partial(self.merge, **self.params), scope_of(self.merge) == "entry"
        if self._merge_model_piece is None:
            names = [name for name, action in self.actions.items() if action == MERGED]
            size = sum(self._merged_size(name) for name in names)
            deltas = Deltas(len(self.experts), size, partial(_stream_deltas, self, names))
            self._merge_model_piece = self.merge(deltas, **self.params)
        return self._merge_model_piece, True

    def cores(self, name: str) -> Cores | None:
        """The deltas of a tensor in the space that they span; None if they are not low-rank."""
        if not self.in_core_space:
            return None
        if name in self._cores:
            return self._cores[name]
        found = None
        deltas = [e.low_rank(name) if isinstance(e, DeltaSource) else None for e in self.experts]
        changes = [delta for delta in deltas if delta is not None]
        if len(changes) == len(deltas):
            found = span(changes, dtype=self.compute_dtypes[name], device=self.device)
            for core, weight in zip(found.cores, self.weights, strict=True):
                core.mul_(weight)
        if scope_of(self.merge) == "model":
            # These are read several times.
            self._cores[name] = found
        return found

    def merge_cores(self, name: str, found: Cores) -> LowRankDelta:
        """The merged delta of a tensor whose deltas are low-rank."""
        merge, splits = self.merge_function(name)
        shape = (-1,) if splits else found.cores.shape[1:]
        named = self.actions[name] == MERGED and scope_of(self.merge) != "model"
        keywords = {"name": name} if named and "name" in required_keywords(self.merge) else {}
        merged = merge(found.cores.reshape(len(found.cores), *shape), **keywords)
        return found.expand(merged.reshape(found.cores.shape[1:]))

    def _merged_size(self, name: str) -> int:
        found = self.cores(name)
        return self.base.specs[name].size if found is None else found.cores[0].numel()

    def _tensor_pieces(self, name: str) -> TensorPieces:
        size = self.base.specs[name].size
        starts = range(0, size, ENTRIES_PER_PIECE)
        return TensorPieces(
            len(self.experts),
            size,
            lambda: (read_deltas(self, name, at, at + ENTRIES_PER_PIECE)[:2] for at in starts),
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
    weights: Sequence[float] = (),
    space: Space = "full",
    names: Collection[str] | None = None,
    left: Collection[str] = (),
) -> MergeJob:
    """Decide what happens to each tensor; raise before reading if the merge cannot work.

    Without `names`, the job has all tensors of the base; those in `left` stay as they are.
    """
    merge: MergeFunction = registry.find("merges", how)
    settings = {**defaults(merge), **validate_values(merge, params or {})}
    settings = {name: settings[name] for name in defaults(merge)}
    if not math.isfinite(scale):
        raise SpecError(f"scale={scale}: not a finite number")
    check_counts(how, merge, experts=len(experts), statistics=len(statistics))
    actions = _actions(merge, base, statistics, names)
    actions |= {name: LEFT for name in actions if name in left}
    check_statistics(base, statistics, actions, same_shape=scope_of(merge) == "entry")
    for expert in experts:
        for warning in check_compatible(base, expert, actions):
            log.warning("%s", warning)
    if MERGED not in actions.values():
        log.warning("%s: no tensor of %s fits this merge: all are averaged", how, base.label)
    in_core_space = _in_core_space(how, merge, settings, experts, space)
    if in_core_space:
        # They have no place in the space that the changes span.
        adapters = [expert for expert in experts if isinstance(expert, DeltaSource)]
        unchanged = [name for name in actions if not any(a.changes(name) for a in adapters)]
        actions |= dict.fromkeys(unchanged, UNCHANGED)
    job = MergeJob(
        *(how, merge, settings, scale, base, experts, statistics, actions, device),
        weights=weights or (1.0,) * len(experts),
        in_core_space=in_core_space,
    )
    job.check_on_zeros()
    return job


def weight_factors(weights: Sequence[float], experts: int) -> tuple[float, ...]:
    """The factors of the experts' deltas: their weights over the mean weight; 1 without weights."""
    if not weights:
        return (1.0,) * experts
    if len(weights) != experts:
        raise MergeError(f"{len(weights)} weights for {experts} experts; give one for each")
    mean = sum(weights) / experts
    if not all(map(math.isfinite, weights)) or min(weights) < 0 or mean == 0:
        raise MergeError("weights of experts must be finite, at least 0, and not all 0")
    return tuple(weight / mean for weight in weights)


def _in_core_space(
    how: str,
    merge: MergeFunction,
    params: Mapping[str, Any],
    experts: Sequence[TensorSource],
    space: Space,
) -> bool:
    """Whether to merge low-rank deltas in the space that they span."""
    adapters = [expert for expert in experts if isinstance(expert, DeltaSource)]
    if space == "full" or len(adapters) != len(experts):
        if space == "core":
            raise MergeError("the core space needs adapters; these experts are whole models")
        return False
    needed = {"base", "statistics"} & set(required_keywords(merge))
    if space == "core" and needed:
        raise MergeError(f"{how} needs full matrices; leave out the space, or use another merge")
    return space == "core" or rotates(how, params)


def _actions(
    merge: MergeFunction,
    base: TensorSource,
    statistics: Sequence[TensorSource],
    names: Collection[str] | None,
) -> dict[str, str]:
    """What happens to each tensor of the base; at least one must be merged or averaged."""
    if not base.specs:
        raise MergeError(f"{base.label}: no tensors in it")
    actions = {}
    for name, spec in base.specs.items():
        if names is not None and name not in names:
            continue
        has_statistics = all(name in source.specs for source in statistics)
        actions[name] = tensor_action(scope_of(merge), name, spec, has_statistics=has_statistics)
    if names is None and all(action.startswith(KEPT) for action in actions.values()):
        raise MergeError(f"{base.label}: nothing to merge, it has no floating-point numbers")
    return actions


def merge_pieces(
    job: MergeJob, name: str, on_change: Callable[[TensorChange], None]
) -> Iterator[Tensor]:
    """Yield the merged entries of a tensor, in the base's type, as consecutive vectors.

    At the end `on_change` receives how far the experts have moved from the base.
    """
    job = job.owner(name)
    if job.actions[name].startswith(KEPT):
        yield from _kept_pieces(job, name, on_change)
        return
    if (cores := job.cores(name)) is not None:
        yield from _core_pieces(job, name, cores, on_change)
        return
    spec, (merge, splits) = job.base.specs[name], job.merge_function(name)
    # A running variance may not leave the range of the base's and the experts' variances.
    scale = job.scale if "running" not in job.actions[name] else min(max(job.scale, 0.0), 1.0)
    squares = torch.zeros(1 + len(job.experts), dtype=torch.float64)
    identical = frozenset(combinations(range(len(job.experts)), 2))
    step = ENTRIES_PER_PIECE if splits else spec.size
    shape = (-1,) if splits else spec.shape or (1,)
    for start in range(0, spec.size, step):
        base, deltas, delta_squares = read_deltas(job, name, start, start + step)
        base_square = _sum_of_squares(base)
        finite = math.isfinite(base_square)
        finite_square = base_square if finite else 0.0
        squares += torch.tensor([finite_square, *delta_squares], dtype=squares.dtype)
        identical = still_identical(identical, deltas, delta_squares)
        if not finite and not deltas.any():
            # For example a mask of -inf, which no merge can or needs to compute with.
            yield base.to(job.result_spec(name).dtype, copy=True)
            continue
        try:
            supplied = _supplied_keywords(job, name, base.view(shape), start, step)
            merged = merge(deltas.view(len(deltas), *shape), **supplied)
        except MergeError as error:
            raise MergeError(f"{name}: {error}") from None
        yield _add_delta(job, name, base, merged.reshape(-1), scale)
    base_norm, *norms = squares.sqrt().tolist()
    on_change(TensorChange(name, base_norm, tuple(norms), identical_pairs=identical))


def _core_pieces(
    job: MergeJob, name: str, found: Cores, on_change: Callable[[TensorChange], None]
) -> Iterator[Tensor]:
    """As `merge_pieces`, from low-rank deltas, whose products are never built as a whole."""
    merged, spec, base_square = job.merge_cores(name, found), job.base.specs[name], 0.0
    for start in range(0, spec.size, ENTRIES_PER_PIECE):
        stop = min(start + ENTRIES_PER_PIECE, spec.size)
        base = job.base.read(name, start, stop).to(job.device, job.compute_dtypes[name])
        base_square += _sum_of_squares(base)
        yield _add_delta(job, name, base, merged.entries(start, stop), job.scale)
    if not math.isfinite(base_square):
        raise MergeError(f"{job.base.label}: NaN or infinity in {name}; give finite weights")
    norms = found.cores.double().flatten(1).norm(dim=1).tolist()
    pairs = combinations(range(len(norms)), 2)
    identical = frozenset(p for p in pairs if torch.equal(*(found.cores[i] for i in p)))
    on_change(TensorChange(name, math.sqrt(base_square), tuple(norms), identical_pairs=identical))


def log_merge_warnings(
    job: MergeJob, changes: Sequence[TensorChange], *, has_base: bool = True
) -> None:
    """Log what is doubtful about the experts, after they were read."""
    labels = [expert.label for expert in job.experts]
    for warning in merge_warnings(changes, job.base.label if has_base else "", labels):
        log.warning("%s", warning)


def _kept_pieces(
    job: MergeJob, name: str, on_change: Callable[[TensorChange], None]
) -> Iterator[Tensor]:
    """The base's entries; `on_change` receives in how many of them each expert differs."""
    if job.actions[name] in (LEFT, UNCHANGED):
        for start in range(0, job.base.specs[name].size, ENTRIES_PER_PIECE):
            entries = job.base.read(name, start, start + ENTRIES_PER_PIECE)
            yield entries.to(job.result_spec(name).dtype, copy=True)
        on_change(TensorChange(name, 0.0, (0.0,) * len(job.experts), kept=True))
        return
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
        if (cores := job.cores(name)) is not None:
            yield cores.cores.flatten(1)
            continue
        for start in range(0, job.base.specs[name].size, ENTRIES_PER_PIECE):
            yield read_deltas(job, name, start, start + ENTRIES_PER_PIECE)[1]


def read_deltas(
    job: MergeJob, name: str, start: int, stop: int
) -> tuple[Tensor, Tensor, list[float]]:
    """The base's entries, the experts' deltas and the sums of their squares, in compute type."""
    dtype = job.compute_dtypes[name]
    base = job.base.read(name, start, stop).to(job.device, dtype)
    deltas, squares = base.new_empty(len(job.experts), len(base)), []
    for delta, expert, weight in zip(deltas, job.experts, job.weights, strict=True):
        if isinstance(expert, DeltaSource):
            delta.copy_(expert.read_delta(name, start, stop))
            entries = base + delta
        else:
            entries = expert.read(name, start, stop).to(base.device, dtype)
            torch.sub(entries, base, out=delta)
        square = _sum_of_squares(delta)
        if not math.isfinite(square):
            delta.copy_(nonfinite_delta(name, base, entries, (job.base.label, expert.label)))
            square = _sum_of_squares(delta)
        if weight != 1.0:
            delta.mul_(weight)
            square *= weight**2
        squares.append(square)
    return base, deltas, squares


def delta_squares(job: MergeJob, name: str) -> list[float]:
    """The sum of the squares of each expert's weighted delta in one tensor."""
    if (cores := job.cores(name)) is not None:
        return cores.cores.double().square().sum(dim=(1, 2)).tolist()
    starts = range(0, job.base.specs[name].size, ENTRIES_PER_PIECE)
    pieces = [read_deltas(job, name, start, start + ENTRIES_PER_PIECE)[2] for start in starts]
    return [sum(squares) for squares in zip(*pieces, strict=True)]


def _add_delta(job: MergeJob, name: str, base: Tensor, merged: Tensor, scale: float) -> Tensor:
    """Base + scale · merged delta, in the base's type."""
    if not math.isfinite(_sum_of_squares(merged)) and not merged.isfinite().all():
        raise MergeError(f"{name}: {job.how} gives numbers that are not finite")
    dtype = job.result_spec(name).dtype
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
    expert_weights: Sequence[float] = (),
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
    expert_weights
        Factors of the experts' deltas, one for each; they are divided by their mean.
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
        weights=weight_factors(expert_weights, len(experts)),
    )
    merged: dict[str, Tensor] = {}
    changes: list[TensorChange] = []
    for name, spec in job.base.specs.items():
        pieces = list(merge_pieces(job, name, changes.append))
        merged[name] = (torch.cat(pieces) if len(pieces) != 1 else pieces[0]).view(spec.shape)
    log_merge_warnings(job, changes)
    return merged
