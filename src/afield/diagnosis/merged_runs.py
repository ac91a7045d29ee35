"""Shared by the diagnostics of merged runs: checks, and the deltas of the experts."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from afield import registry
from afield.errors import SpecError
from afield.merging.scopes import MERGED, TensorSpec, tensor_action
from afield.runs.finished import FinishedRun


def check_merged(finished: FinishedRun, name: str, *, experts: int = 1) -> None:
    """Raise an error unless the run is merged from at least this number of experts."""
    method = finished.record.run.method
    if not finished.experts:
        raise SpecError(
            f"{name} takes merged runs, as made by `afield bench DATA --merges score`; this is a "
            f"run of {method}"
        )
    if len(finished.experts) < experts:
        raise SpecError(
            f"{name} compares experts, and {method} has {len(finished.experts)}; choose a merge "
            "of the same store"
        )


def changed_matrices(finished: FinishedRun) -> list[str]:
    """Names of the matrices that merges act on and that some expert changed.

    They are in the order of the network; files are sorted by name.
    """
    order = {name: index for index, name in enumerate(finished.model.state_dict())}
    names = [
        name
        for name, value in finished.base.items()
        if tensor_action("matrix", name, TensorSpec(value.dtype, tuple(value.shape))) == MERGED
        and any(not torch.equal(expert[name], value) for expert in finished.experts.values())
    ]
    if not names:
        raise SpecError("no expert changed a matrix, so there is nothing to compare")
    return sorted(names, key=lambda name: order.get(name, len(order)))


def check_matrices(names: Sequence[str], wanted: Sequence[str], where: str) -> None:
    """Raise an error for wanted names that are not among the changed matrices."""
    for name in wanted:
        if name not in names:
            hint = registry.hint(name, list(names))
            raise SpecError(f"{where}: no changed matrix is called {name!r}; {hint}")


def matrix_deltas(finished: FinishedRun, names: Sequence[str]) -> Iterator[Tensor]:
    """The deltas of all experts for each matrix, [experts, m, n], at least in float32."""
    for name in names:
        base = finished.base[name]
        precise = base if base.dtype == torch.float64 else base.float()
        experts = [expert[name].to(precise.dtype) for expert in finished.experts.values()]
        yield torch.stack(experts) - precise
