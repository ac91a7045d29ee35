"""What a merge is: a pure function of what each expert changed in one common base.

A merge takes the experts' deltas (expert minus base), stacked in a first dimension, and gives the
merged delta; the result is base + scale · merged delta. Its `scope` says of what it is a function:

    matrix    of every matrix by itself, [D, m, n] -> [m, n]; all other tensors are averaged
    tensor    of every tensor by itself, [D, ...] -> [...]
    entry     of every entry by itself, [D, n] -> [n]: tensors may come in pieces
    model     of the whole model: it looks at the `Deltas`, and gives a function of their pieces

Its settings are keywords with a default. Keywords without one are handed over: ``base`` (the base's
entries, shaped as one delta), ``name`` (of the tensor), ``statistics`` (one for each expert,
stacked; a matrix that has none is averaged).

What happens to which tensor is decided in `tensor_action`, and nowhere else.
"""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from afield import registry
from afield.errors import MergeError, SpecError
from afield.hyperparameters import defaults, validate_values
from afield.merging.checks import (
    KEPT,
    MERGED,
    TensorChange,
    TensorSource,
    TensorSpec,
    check_compatible,
    merge_warnings,
)
from afield.merging.job import (
    MergeFunction,
    MergeJob,
    StateDictSource,
    merge_pieces,
    required_keywords,
    scope_of,
)
from afield.merging.order_statistics import Deltas

__all__ = [
    "Deltas",
    "Scope",
    "log_merge_warnings",
    "merge",
    "plan_merge",
    "scope",
    "share",
    "tensor_action",
]

Scope = Literal["matrix", "tensor", "entry", "model"]
F = TypeVar("F", bound=Callable[..., object])
AVERAGED = "averaged"
log = logging.getLogger(__name__)


def scope(kind: Scope) -> Callable[[F], F]:
    """Say what a merge is a function of."""

    def marked(merge: F) -> F:
        merge.scope = kind  # type: ignore[attr-defined]
        return merge

    return marked


def share(name: str, value: float) -> float:
    """A setting that must be a share, from 0 to 1."""
    if not 0 <= value <= 1:
        raise MergeError(f"{name}={value}: a share from 0 to 1 is needed")
    return value


def tensor_action(kind: Scope, name: str, spec: TensorSpec, *, has_statistics: bool = True) -> str:
    """What happens to a tensor: "merged", or "averaged: …" or "kept: …" with the reason.

    Averaged is base + scale · mean of the deltas, kept is the base's. Running statistics of
    normalisation layers are averaged by every merge, with a scale below 0 taken as 0 and one above
    1 as 1: a sum of changes, or a long step, can make a variance negative.

    >>> tensor_action("matrix", "visual.conv1.weight", TensorSpec(torch.float32, (768, 3, 32, 32)))
    'averaged: not a matrix'
    >>> tensor_action("entry", "visual.conv1.weight", TensorSpec(torch.float32, (768, 3, 32, 32)))
    'merged'

    Parameters
    ----------
    kind
        Scope of the merge.
    name
        Of the tensor.
    spec
        Its type and shape.
    known
        Whether there are the statistics of it that the merge needs.
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


def plan_merge(
    how: str,
    base: TensorSource,
    experts: Sequence[TensorSource],
    *,
    scale: float = 1.0,
    statistics: Sequence[TensorSource] = (),
    params: Mapping[str, Any] | None = None,
) -> MergeJob:
    """Decide what will happen to each tensor; what cannot work is an error, before reading."""
    merge: MergeFunction = registry.find("merges", how)
    settings = {**defaults(merge), **validate_values(merge, params or {})}
    settings = {name: settings[name] for name in defaults(merge)}
    if not math.isfinite(scale):
        raise SpecError(f"scale={scale}: not a finite number")
    if not experts:
        raise MergeError("no experts; give the models that were fine-tuned from the base")
    _check_statistics(how, merge, len(experts), statistics)
    rules = _rules(merge, base, statistics)
    _check_names(merge, base, statistics, rules)
    for expert in experts:
        for doubt in check_compatible(base, expert, rules):
            log.warning("%s", doubt)
    if MERGED not in rules.values():
        log.warning("%s: nothing in %s is for it to merge: all is averaged", how, base.told)
    job = MergeJob(how, merge, settings, scale, base, experts, statistics, rules)
    job.check_on_zeros()
    return job


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
        How far to go from the base along the merged delta.
    statistics
        For fisher and regmean, one mapping of tensors an expert.
    params
        Settings of the merge.
    """
    job = plan_merge(
        how,
        StateDictSource(base, "base"),
        [StateDictSource(each, f"expert {i}") for i, each in enumerate(experts, start=1)],
        scale=scale,
        statistics=[
            StateDictSource(s, f"statistics {i}") for i, s in enumerate(statistics or (), 1)
        ],
        params=params,
    )
    found: dict[str, Tensor] = {}
    movements: list[TensorChange] = []
    for name, spec in job.base.specs.items():
        pieces = list(merge_pieces(job, name, movements.append))
        found[name] = (torch.cat(pieces) if len(pieces) != 1 else pieces[0]).view(spec.shape)
    log_merge_warnings(job, movements)
    return found


def log_merge_warnings(job: MergeJob, movements: Sequence[TensorChange]) -> None:
    """Warn of what is doubtful about the experts now that they have been read."""
    for doubt in merge_warnings(movements, job.base.told, [expert.told for expert in job.experts]):
        log.warning("%s", doubt)


def _rules(
    merge: MergeFunction, base: TensorSource, statistics: Sequence[TensorSource]
) -> dict[str, str]:
    """What happens to each tensor of the base; to one at least, something."""
    if not base.specs:
        raise MergeError(f"{base.told}: no tensors in it")
    rules = {}
    for name, spec in base.specs.items():
        known = all(name in each.specs for each in statistics)
        rules[name] = tensor_action(scope_of(merge), name, spec, has_statistics=known)
    if all(rule.startswith(KEPT) for rule in rules.values()):
        raise MergeError(f"{base.told}: nothing to merge, for no floating-point numbers are in it")
    return rules


def _check_statistics(
    how: str, merge: MergeFunction, experts: int, given: Sequence[TensorSource]
) -> None:
    needed = "statistics" in required_keywords(merge)
    if needed and len(given) != experts:
        raise MergeError(
            f"{how} needs statistics, one file or mapping for each of the {experts} experts "
            f"({len(given)} given); see `afield explain {how}`"
        )
    if given and not needed:
        raise MergeError(f"{how} uses no statistics; leave them out")


def _check_names(
    merge: MergeFunction,
    base: TensorSource,
    statistics: Sequence[TensorSource],
    rules: Mapping[str, str],
) -> None:
    """Statistics are there for all that is merged, and of its shape where entries need them."""
    for name in (name for name, rule in rules.items() if rule == MERGED):
        for source in statistics:
            spec = source.specs.get(name)
            if spec is None:
                raise MergeError(
                    f"{name}: not in {source.told}; statistics of every tensor are needed"
                )
            if scope_of(merge) == "entry" and spec.shape != base.specs[name].shape:
                raise MergeError(
                    f"{name}: in {source.told} it has another shape, {list(spec.shape)}"
                )
