"""What a merge is: a pure function of the changes that experts made to a common base.

A merge takes the experts' deltas (expert minus base), stacked along the first dimension, and
returns the merged delta. The merged model is base + scale · merged delta. The `scope` of a merge
says what it is a function of:

    matrix    of each matrix separately, [D, m, n] -> [m, n]; all other tensors are averaged
    tensor    of each tensor separately, [D, ...] -> [...]
    entry     of each entry separately, [D, n] -> [n], so tensors may be split into pieces
    model     of the whole model: it takes the `Deltas` and returns a function of their pieces

Settings are keywords with a default. Keywords without a default are supplied by the caller:

    base         the entries of the base, shaped like one delta
    name         the name of the tensor
    statistics   statistics of data, one tensor per expert, stacked; a merge with the scope matrix
                 averages the matrices that have none

So a merge itself states whether it needs statistics, through its signature, and whether it takes a
fixed number of experts, through ``@scope("tensor", experts=2)``. `usual_scale` is the scale that
its source recommends, which is the default on the command line. A merge declared with
``validation=True`` gets only those experts that validation scores admit; merging files has none.

`tensor_action` alone decides what happens to each tensor.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from afield.errors import MergeError, SpecError


@dataclass(frozen=True)
class TensorSpec:
    """The type and shape of a tensor, known before its entries are read."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of entries."""
        return math.prod(self.shape)


class TensorSource(Protocol):
    """Named tensors that can be read whole or in pieces: a state dict, or files."""

    @property
    def label(self) -> str:
        """The name of the source in messages."""

    @property
    def specs(self) -> Mapping[str, TensorSpec]:
        """The type and shape of every tensor, by name."""

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Tensor:
        """Entries `start` to `stop` of a tensor, flattened; a view that must not be modified."""


@dataclass(frozen=True)
class LowRankDelta:
    """The change left · right of a tensor, seen as a matrix with the tensor's first dimension."""

    left: Tensor
    right: Tensor

    @property
    def rank(self) -> int:
        """The number of columns of the left factor."""
        return self.left.shape[1]

    def entries(self, start: int, stop: int) -> Tensor:
        """Entries `start` to `stop` of the product, flattened; only their rows are computed."""
        columns = self.right.shape[1]
        first = start // columns
        rows = self.left[first : -(-stop // columns)] @ self.right
        return rows.reshape(-1)[start - first * columns : stop - first * columns]


@runtime_checkable
class DeltaSource(TensorSource, Protocol):
    """A model that is stored as its changes to a base, such as an adapter."""

    def read_delta(self, name: str, start: int = 0, stop: int | None = None) -> Tensor:
        """Entries `start` to `stop` of the change of a tensor, flattened."""

    def changes(self, name: str) -> bool:
        """Whether the model differs from the base in a tensor."""

    def low_rank(self, name: str) -> LowRankDelta | None:
        """The change of a tensor as a product; None if it is stored in full."""


Scope = Literal["matrix", "tensor", "entry", "model"]
MergeFunction = Callable[..., Any]
F = TypeVar("F", bound=Callable[..., object])
MERGED, AVERAGED, KEPT = "merged", "averaged", "kept"
LEFT, UNCHANGED = f"{KEPT}: left as in the base", f"{KEPT}: no adapter changes it"
SUPPLIED_KEYWORDS = ("base", "name", "statistics")


def scope(
    kind: Scope,
    *,
    experts: int | None = None,
    validation: bool = False,
    usual_scale: float = 1.0,
    in_pieces: Callable[..., Any] | None = None,
) -> Callable[[F], F]:
    """Declare what a merge is a function of, and what it needs.

    Parameters
    ----------
    kind
        What it is a function of.
    experts
        How many experts it takes, if that is fixed.
    validation
        Whether the caller chooses the experts by their validation scores before it merges them.
    usual_scale
        The factor of the merged delta in the paper or the authors' code.
    in_pieces
        For a merge of tensors: does the same for a tensor that is too large to hold. It takes the
        `TensorPieces`, the settings and the name, and returns a function of a piece [D, n] of the
        deltas, which gets the pieces in their order, with the same keywords as the merge.
    """

    def declare(merge: F) -> F:
        merge.scope, merge.experts = kind, experts  # type: ignore[attr-defined]
        merge.validation = validation  # type: ignore[attr-defined]
        merge.usual_scale = usual_scale  # type: ignore[attr-defined]
        merge.in_pieces = in_pieces  # type: ignore[attr-defined]
        return merge

    return declare


def scope_of(merge: MergeFunction) -> Scope:
    """The declared scope of a merge."""
    return merge.scope  # type: ignore[attr-defined]


def expert_count(merge: MergeFunction) -> int | None:
    """How many experts a merge takes; None if any number will do."""
    return merge.experts  # type: ignore[attr-defined]


def needs_validation(merge: MergeFunction) -> bool:
    """Whether the experts of a merge are chosen by their validation scores."""
    return merge.validation  # type: ignore[attr-defined]


def scale_of(merge: MergeFunction) -> float:
    """The factor that usually multiplies the merged delta; 1 unless the merge declares another."""
    return getattr(merge, "usual_scale", 1.0)


def piecewise(merge: MergeFunction) -> Callable[..., Any] | None:
    """The form of a merge for tensors that are too large to hold; None if it has none."""
    form: Callable[..., Any] | None = getattr(merge, "in_pieces", None)
    return form


def needs_statistics(merge: MergeFunction) -> bool:
    """Whether a merge needs statistics of data for every expert."""
    return "statistics" in required_keywords(merge)


def merges_weights(merge: MergeFunction, experts: int) -> bool:
    """Whether a merge takes this many experts and needs nothing but their weights."""
    return not needs_statistics(merge) and expert_count(merge) in (None, experts)


@lru_cache
def required_keywords(merge: MergeFunction) -> tuple[str, ...]:
    """The keywords of a merge that have no default, which the caller supplies."""
    parameters = inspect.signature(merge).parameters.values()
    names = tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty)
    unknown = [name for name in names if name not in SUPPLIED_KEYWORDS]
    if unknown:
        raise SpecError(
            f"{merge.__name__}: the setting {unknown[0]} needs a default; only "
            f"{', '.join(SUPPLIED_KEYWORDS)} may go without one"
        )
    return names


def share(name: str, value: float) -> float:
    """Return the value of a setting that must lie between 0 and 1, or raise."""
    if not 0 <= value <= 1:
        raise MergeError(f"{name}={value}: must be a share from 0 to 1")
    return value


def tensor_action(kind: Scope, name: str, spec: TensorSpec, *, has_statistics: bool = True) -> str:
    """What happens to a tensor: "merged", or "averaged: …" or "kept: …" with the reason.

    An averaged tensor is base + scale · mean of the deltas; a kept tensor is the base's. Every
    merge averages the running statistics of normalization layers, with the scale clipped to the
    range from 0 to 1: a sum of changes, or a long step, could make a variance negative.

    >>> import torch
    >>> tensor_action("matrix", "visual.conv1.weight", TensorSpec(torch.float32, (768, 3, 32, 32)))
    'averaged: not a matrix'
    >>> tensor_action("entry", "visual.conv1.weight", TensorSpec(torch.float32, (768, 3, 32, 32)))
    'merged'

    Parameters
    ----------
    kind
        Scope of the merge.
    name
        Name of the tensor.
    spec
        Its type and shape.
    has_statistics
        Whether the statistics that the merge needs exist for this tensor.
    """
    if not spec.dtype.is_floating_point:
        return f"{KEPT}: not floating point"
    if spec.size == 0:
        return f"{KEPT}: empty"
    if name.endswith(("running_mean", "running_var")):
        return f"{AVERAGED}: running statistics, scale within 0 and 1"
    if kind == "matrix" and len(spec.shape) != 2:
        return f"{AVERAGED}: not a matrix"
    if kind == "matrix" and "text_projection" in name:
        return f"{AVERAGED}: text_projection"
    if kind == "matrix" and not has_statistics:
        return f"{AVERAGED}: no statistics"
    return MERGED
