"""Merging state dicts in memory."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from afield.errors import MergeError
from afield.merging.checks import TensorChange
from afield.merging.job import log_merge_warnings, merge_pieces, plan_merge
from afield.merging.tensor_source import TensorSpec

__all__ = ["StateDictSource", "merge"]


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
