"""What can be wrong with a base and experts: the impossible is an error, the doubtful is told."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from afield.errors import MergeError

__all__ = [
    "KEPT",
    "MERGED",
    "TensorChange",
    "TensorSource",
    "TensorSpec",
    "check_compatible",
    "merge_warnings",
    "nonfinite_delta",
]

MERGED, KEPT = "merged", "kept"
# Deltas of this share of the weights are doubtful: unrelated weights differ by about 1.4, those of
# a fine-tuned model rarely by more than 0.2.
DOUBTFUL_DELTA_RATIO = 0.75
# Counts steps, not knowledge: it may differ.
STEP_COUNTER_SUFFIX = "num_batches_tracked"


@dataclass(frozen=True)
class TensorSpec:
    """What is known of a tensor before it is read."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """How many entries it has."""
        return math.prod(self.shape)


class TensorSource(Protocol):
    """Named tensors, to be read whole or in pieces: a state dict, or files."""

    @property
    def told(self) -> str:
        """How it is called in messages."""

    @property
    def specs(self) -> Mapping[str, TensorSpec]:
        """The tensors by name."""

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Tensor:
        """Entries of one tensor, in their order, as a vector that is only to be looked at."""


@dataclass(frozen=True)
class TensorChange:
    """How large a tensor and each expert's change of it are, as Euclidean norms.

    Of a tensor that is kept, as integers are, in how many entries each expert differs. `alike` are
    the pairs of experts, by their places, of which all entries are the same.
    """

    name: str
    base: float
    experts: tuple[float, ...]
    kept: bool = False
    alike: frozenset[tuple[int, int]] = frozenset()


def check_compatible(
    base: TensorSource, expert: TensorSource, actions: Mapping[str, str]
) -> Iterator[str]:
    """What is doubtful about an expert's tensors, before they are read; or an error."""
    needed = [name for name, rule in actions.items() if not rule.startswith(KEPT)]
    missing = [name for name in needed if name not in expert.specs]
    if len(missing) == len(needed):
        theirs = next(iter(expert.specs), "nothing")
        raise MergeError(
            f"{expert.told}: none of the base's tensors is in it ({base.told} has {needed[0]}, "
            f"this has {theirs}); give models of one architecture, under the same names"
        )
    if missing:
        raise MergeError(
            f"{expert.told}: {_listed(missing)} of {base.told} not in it; "
            "give models of one architecture"
        )
    for name in needed:
        ours, theirs_ = base.specs[name], expert.specs[name]
        if ours.shape != theirs_.shape:
            raise MergeError(
                f"{expert.told}: {name} has the shape {list(theirs_.shape)}, but in {base.told} "
                f"{list(ours.shape)}; give models of one architecture"
            )
        if not theirs_.dtype.is_floating_point:
            raise MergeError(
                f"{expert.told}: {name} is {_short(theirs_.dtype)}, but {_short(ours.dtype)} in "
                f"{base.told}; give weights that are not quantised"
            )
    extra = [name for name in expert.specs if name not in base.specs]
    if extra:
        yield f"{expert.told}: {_listed(extra)} not in {base.told}, and so not in the result"
    other = [name for name in needed if expert.specs[name].dtype != base.specs[name].dtype]
    if other:
        types = (_short(source.specs[other[0]].dtype) for source in (expert, base))
        yield f"{expert.told}: {_listed(other)} {' instead of '.join(types)}, as the result will be"


def nonfinite_delta(name: str, base: Tensor, expert: Tensor, labels: Sequence[str]) -> Tensor:
    """The delta of two vectors that are not finite: none where they are the same.

    So a mask of -inf stays what it is; anything else, and NaN anywhere, is an error.
    """
    same = base == expert
    for source, values in zip(labels, (base, expert), strict=True):
        wrong = values[~same & ~values.isfinite()]
        if len(wrong):
            what = "NaN" if wrong.isnan().any() else "an infinite number"
            raise MergeError(f"{source}: {what} in {name}; give weights that are finite")
    return torch.where(same, torch.zeros_like(base), expert - base)


def merge_warnings(
    movements: Sequence[TensorChange], base: str, experts: Sequence[str]
) -> Iterator[str]:
    """What is doubtful about the experts now that they have been read."""
    moved = [movement for movement in movements if not movement.kept]
    rows = [[movement.experts[i] for movement in moved] for i in range(len(experts))]
    twins = {later: first for first, later in sorted(_always_alike(moved), reverse=True)}
    size = math.hypot(*(movement.base for movement in moved))
    if size == 0:
        yield f"{base}: all its weights are 0; is that the experts' base?"
    for i, (told, row) in enumerate(zip(experts, rows, strict=True)):
        if not any(row):
            yield f"{told}: all its weights are those of {base}; as an expert it adds nothing"
        elif i in twins:
            yield f"{told}: the same weights as {experts[twins[i]]}; they count twice"
        elif size and math.hypot(*row) >= DOUBTFUL_DELTA_RATIO * size:
            name, ratio = _farthest(moved, i)
            yield (
                f"{told}: differs from {base} by {math.hypot(*row) / size:.2f} times its size, "
                f"most in {name} ({ratio}); is that its base?"
            )
    changed = [m.name for m in movements if m.kept and any(m.experts)]
    if changed := [name for name in changed if not name.endswith(STEP_COUNTER_SUFFIX)]:
        yield f"{_listed(changed)} changed by the experts, but not floating point: the base's kept"


def _always_alike(moved: Sequence[TensorChange]) -> frozenset[tuple[int, int]]:
    """The pairs of experts that are the same in every tensor."""
    return frozenset.intersection(*(movement.alike for movement in moved))


def _farthest(moved: Sequence[TensorChange], expert: int) -> tuple[str, str]:
    """The tensor that an expert has changed most for its size, and by how many times that."""

    def change(each: TensorChange) -> tuple[float, float]:
        # Without a size there is no ratio: such a tensor is named if nothing else has moved.
        return each.experts[expert] / each.base if each.base else 0.0, each.experts[expert]

    worst = max(moved, key=change)
    return worst.name, f"{change(worst)[0]:.2f}" if worst.base else "0 in the base"


def _listed(names: Sequence[str]) -> str:
    """How many, and the first of them."""
    return names[0] if len(names) == 1 else f"{len(names)} tensors (e.g. {names[0]})"


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
