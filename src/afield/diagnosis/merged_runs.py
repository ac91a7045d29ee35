"""What the diagnostics of merged runs share: whether a run is one, and what its experts changed."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from afield import registry
from afield.errors import SpecError
from afield.experiments.finished import FinishedRun
from afield.merging.scopes import MERGED, tensor_action
from afield.merging.tensor_source import TensorSpec

__all__ = ["changed_matrices", "check_matrices", "check_merged", "matrix_deltas"]


def check_merged(finished: FinishedRun, name: str, *, experts: int = 1) -> None:
    """Refuse runs that are not merged, or of fewer experts."""
    method = finished.record.run.method
    if not finished.experts:
        raise SpecError(
            f"{name} looks at merged runs, as `afield bench DATA --merges score` makes them; this "
            f"is one of {method}"
        )
    if len(finished.experts) < experts:
        raise SpecError(
            f"{name} compares experts, and {method} has {len(finished.experts)}; look at a "
            "merge of "
            "the same store"
        )


def changed_matrices(finished: FinishedRun) -> list[str]:
    """The tensors that a merge of matrices merges, and that some expert has changed.

    In the order of the network: files have theirs by name.
    """
    order = {name: place for place, name in enumerate(finished.model.state_dict())}
    found = [
        name
        for name, value in finished.base.items()
        if tensor_action("matrix", name, TensorSpec(value.dtype, tuple(value.shape))) == MERGED
        and any(not torch.equal(expert[name], value) for expert in finished.experts.values())
    ]
    if not found:
        raise SpecError("no expert has changed a matrix: there is nothing to compare")
    return sorted(found, key=lambda name: order.get(name, len(order)))


def check_matrices(names: Sequence[str], wanted: Sequence[str], where: str) -> None:
    """Refuse names that are not among those of the changed matrices."""
    for name in wanted:
        if name not in names:
            known = registry.hint(name, list(names))
            raise SpecError(f"{where}: no changed matrix is called {name!r}; {known}")


def matrix_deltas(finished: FinishedRun, names: Sequence[str]) -> Iterator[Tensor]:
    """What each expert changed in each of these matrices, [experts, m, n], in float32 at least."""
    for name in names:
        base = finished.base[name]
        precise = base if base.dtype == torch.float64 else base.float()
        experts = [expert[name].to(precise.dtype) for expert in finished.experts.values()]
        yield torch.stack(experts) - precise
