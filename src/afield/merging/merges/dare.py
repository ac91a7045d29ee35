"""DARE: drop changes at random and rescale the rest (Yu et al., 2024).

    merged = Σ_d m_d Δ_d / (1 - drop),   m_d = 0 with probability `drop`, else 1, entry by entry

Which entries are dropped depends on `seed`, on the name of the tensor and on the index of the
expert, and therefore on the order of the experts; on nothing else.

Differs from the paper: the paper applies DARE before several merges; this is DARE before task
arithmetic. The paper drops 0.9 and more of large language models; 0.9 as the default is our choice.
"""

from collections.abc import Callable, Sequence
from typing import Annotated

import torch
from torch import Tensor

from afield.errors import MergeError
from afield.hyperparameters import Choice, Uniform
from afield.merging.order_statistics import TensorPieces
from afield.merging.scopes import scope, share
from afield.seeds import derive_seed

__all__ = ["dare"]


def _in_pieces(pieces: TensorPieces, *, name: str, drop: float, seed: int) -> Callable[..., Tensor]:
    """The same draws, a piece at a time."""
    generators = [_generator(seed, name, i) for i in range(pieces.experts)]

    def merged(piece: Tensor, *, name: str) -> Tensor:
        del name
        return _sum_of_kept(piece, generators, drop)

    return merged


@scope("tensor", in_pieces=_in_pieces)
def dare(
    deltas: Tensor,
    *,
    name: str,
    drop: Annotated[float, Uniform(0.1, 0.99)] = 0.9,
    seed: Annotated[int, Choice((0, 1, 2))] = 0,
) -> Tensor:
    """Sum over the experts of the entries that are not dropped."""
    if share("drop", drop) == 1:
        raise MergeError("drop=1 leaves nothing; give a share below 1")
    return _sum_of_kept(deltas, [_generator(seed, name, i) for i in range(len(deltas))], drop)


def _generator(seed: int, name: str, expert: int) -> torch.Generator:
    return torch.Generator().manual_seed(derive_seed("dare", seed, name, expert))


def _sum_of_kept(deltas: Tensor, generators: Sequence[torch.Generator], drop: float) -> Tensor:
    total = torch.zeros_like(deltas[0])
    for delta, generator in zip(deltas, generators, strict=True):
        # Drawn on the CPU, so that the result does not depend on the device.
        kept = torch.rand(delta.shape, generator=generator) >= drop
        total += delta * kept.to(delta.device)
    return total / (1 - drop)
