"""Checks of base, experts and statistics: errors for what is impossible, warnings for doubts."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from afield.errors import MergeError
from afield.merging.scopes import (
    KEPT,
    MERGED,
    MergeFunction,
    TensorSource,
    expert_count,
    needs_statistics,
)

# Deltas of this size relative to the weights are doubtful: unrelated weights differ by about 1.4
# times their norm, the weights of a fine-tuned model rarely by more than 0.2.
DOUBTFUL_DELTA_RATIO = 0.75
# In most merges, a long change outweighs a short one; above this ratio there is a warning.
UNEQUAL_NORM_RATIO = 3.0
# Counts training steps and holds nothing learned, so it may differ.
STEP_COUNTER_SUFFIX = "num_batches_tracked"


@dataclass(frozen=True)
class TensorChange:
    """The Euclidean norm of a tensor in the base, and of each expert's change to it.

    For a kept tensor, such as one of integers, `experts` counts the entries in which each expert
    differs from the base. `identical_pairs` are the pairs of experts, by index, that are equal in
    all entries.
    """

    name: str
    base: float
    experts: tuple[float, ...]
    kept: bool = False
    identical_pairs: frozenset[tuple[int, int]] = frozenset()


def check_compatible(
    base: TensorSource, expert: TensorSource, actions: Mapping[str, str]
) -> Iterator[str]:
    """Yield warnings about an expert before its entries are read; raise if it cannot be merged."""
    needed = [name for name, action in actions.items() if not action.startswith(KEPT)]
    missing = [name for name in needed if name not in expert.specs]
    if len(missing) == len(needed):
        example = next(iter(expert.specs), "no tensor")
        raise MergeError(
            f"{expert.label}: has none of the base's tensors ({base.label} has {needed[0]}, this "
            f"has {example}); give models of one architecture, with the same tensor names"
        )
    if missing:
        raise MergeError(
            f"{expert.label}: lacks {_abridge(missing)} of {base.label}; "
            "give models of one architecture"
        )
    for name in needed:
        _check_tensor(base, expert, name)
    extra = [name for name in expert.specs if name not in base.specs]
    if extra:
        yield f"{expert.label}: {_abridge(extra)} not in {base.label}, so not in the result"
    other = [name for name in needed if expert.specs[name].dtype != base.specs[name].dtype]
    if other:
        ours, theirs = (_short_name(source.specs[other[0]].dtype) for source in (base, expert))
        yield (
            f"{expert.label}: {_abridge(other)} stored as {theirs}; the result is {ours}, like "
            f"{base.label}"
        )


def _check_tensor(base: TensorSource, expert: TensorSource, name: str) -> None:
    ours, theirs = base.specs[name], expert.specs[name]
    if ours.shape != theirs.shape:
        raise MergeError(
            f"{expert.label}: {name} has the shape {list(theirs.shape)}, but {list(ours.shape)} in "
            f"{base.label}; give models of one architecture"
        )
    if not theirs.dtype.is_floating_point:
        raise MergeError(
            f"{expert.label}: {name} is {_short_name(theirs.dtype)}, but {_short_name(ours.dtype)} "
            f"in {base.label}; give weights that are not quantized"
        )


def check_counts(how: str, merge: MergeFunction, *, experts: int, statistics: int) -> None:
    """Raise if a merge takes another number of experts, or of statistics."""
    if not experts:
        raise MergeError("no experts; give the models that were fine-tuned from the base")
    required = expert_count(merge)
    if required not in (None, experts):
        raise MergeError(f"{how} takes exactly {required} experts, not {experts}")
    if needs_statistics(merge) and statistics != experts:
        raise MergeError(
            f"{how} needs statistics, one file or mapping for each of the {experts} experts "
            f"({statistics} given); see `afield explain {how}`"
        )
    if statistics and not needs_statistics(merge):
        raise MergeError(f"{how} uses no statistics; leave them out")


def check_statistics(
    base: TensorSource,
    statistics: Sequence[TensorSource],
    actions: Mapping[str, str],
    *,
    same_shape: bool,
) -> None:
    """Raise if statistics lack a merged tensor, or if they must have its shape and do not."""
    for name in (name for name, action in actions.items() if action == MERGED):
        for source in statistics:
            spec, shape = source.specs.get(name), base.specs[name].shape
            if spec is None:
                raise MergeError(
                    f"{name}: not in {source.label}; statistics of every tensor are needed"
                )
            if same_shape and spec.shape != shape:
                raise MergeError(
                    f"{name}: has the shape {list(spec.shape)} in {source.label}, but "
                    f"{list(shape)} in {base.label}"
                )


def nonfinite_delta(name: str, base: Tensor, expert: Tensor, labels: Sequence[str]) -> Tensor:
    """The delta of two vectors that are not finite: 0 where their entries are equal.

    So a mask of -inf stays as it is. An infinite entry that changes, and any NaN, is an error.
    """
    same = base == expert
    for label, values in zip(labels, (base, expert), strict=True):
        wrong = values[~same & ~values.isfinite()]
        if len(wrong):
            value = "NaN" if wrong.isnan().any() else "an infinite number"
            raise MergeError(f"{label}: {value} in {name}; give finite weights")
    return torch.where(same, torch.zeros_like(base), expert - base)


def merge_warnings(
    changes: Sequence[TensorChange], base: str, experts: Sequence[str]
) -> Iterator[str]:
    """Yield warnings about the experts after their entries were read; labels name the sources.

    The label of the base is empty if adapters are merged without their base.
    """
    merged = [change for change in changes if not change.kept]
    duplicates = {later: first for first, later in sorted(_identical_pairs(merged), reverse=True)}
    size = math.hypot(*(change.base for change in merged))
    if size == 0 and base:
        yield f"{base}: all its weights are 0; is it the experts' base?"
    for i, label in enumerate(experts):
        distance = math.hypot(*(change.experts[i] for change in merged))
        if distance == 0:
            other = base or "its base"
            yield f"{label}: has the same weights as {other}, so as an expert it adds nothing"
        elif i in duplicates:
            yield f"{label}: has the same weights as {experts[duplicates[i]]}, so they count twice"
        elif size and distance >= DOUBTFUL_DELTA_RATIO * size:
            name, ratio = _farthest(merged, i)
            yield (
                f"{label}: differs from {base} by {distance / size:.2f} times its norm, "
                f"most in {name} ({ratio}); is that its base?"
            )
    yield from _unequal_norms(merged, experts)
    changed = [change.name for change in changes if change.kept and any(change.experts)]
    if changed := [name for name in changed if not name.endswith(STEP_COUNTER_SUFFIX)]:
        yield f"{_abridge(changed)} changed by the experts, but not floating point: the base's kept"


def _unequal_norms(changes: Sequence[TensorChange], experts: Sequence[str]) -> Iterator[str]:
    """Yield a warning if one change is much longer than another one; unchanged experts are none."""
    norms = [math.hypot(*(change.experts[i] for change in changes)) for i in range(len(experts))]
    changed = sorted((norm, i) for i, norm in enumerate(norms) if norm > 0)
    if changed and (ratio := changed[-1][0] / changed[0][0]) > UNEQUAL_NORM_RATIO:
        yield (
            f"{experts[changed[-1][1]]}: its change is {ratio:.1f} times as long as that of "
            f"{experts[changed[0][1]]} and outweighs it; `afield merge --equalize norm` shortens it"
        )


def _identical_pairs(changes: Sequence[TensorChange]) -> frozenset[tuple[int, int]]:
    """The pairs of experts that are equal in every tensor."""
    return frozenset.intersection(*(change.identical_pairs for change in changes))


def _farthest(changes: Sequence[TensorChange], expert: int) -> tuple[str, str]:
    """The tensor that an expert changed most relative to its norm, and that ratio as text."""

    def ratio(change: TensorChange) -> tuple[float, float]:
        # A tensor of zeros has no ratio: it is named only if no other tensor has changed.
        return (
            change.experts[expert] / change.base if change.base else 0.0,
            change.experts[expert],
        )

    worst = max(changes, key=ratio)
    return worst.name, f"{ratio(worst)[0]:.2f}" if worst.base else "0 in the base"


def _abridge(names: Sequence[str]) -> str:
    """The only name, or how many there are and the first of them."""
    return names[0] if len(names) == 1 else f"{len(names)} tensors (e.g. {names[0]})"


def _short_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def still_identical(
    pairs: frozenset[tuple[int, int]], deltas: Tensor, squares: Sequence[float]
) -> frozenset[tuple[int, int]]:
    """The pairs of experts that are identical in these entries too."""
    return frozenset(
        (i, j)
        for i, j in pairs
        if squares[i] == squares[j] == 0 or torch.equal(deltas[i], deltas[j])
    )
