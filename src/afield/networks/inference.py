"""Run a network in evaluation mode over many samples."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from afield.data.samples import Prepare, Rows, identity

__all__ = ["MAX_CHUNK_NUMBERS", "MAX_CHUNK_SAMPLES", "compute_outputs", "eval_mode"]

# Large enough to keep the cores busy, small enough for the caches and for memory: samples, and
# numbers in all of them together.
MAX_CHUNK_SAMPLES, MAX_CHUNK_NUMBERS = 512, 2**23


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, and every module back in the mode that it was in: some may be frozen."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


def compute_outputs(
    model: nn.Module,
    x: Rows,
    prepare: Prepare = identity,
    *,
    indices: Tensor | None = None,
    max_batch_size: int = MAX_CHUNK_SAMPLES,
    domain: int | None = None,
) -> Tensor:
    """What a network in evaluation mode makes of all rows, or of the chosen, so many at a time.

    Where it can use that, it may be told the source domain that they are of, by its number.
    """
    told = () if domain is None else (domain,)
    with eval_mode(model), torch.inference_mode():
        size = max(1, min(max_batch_size, MAX_CHUNK_NUMBERS // x.shape.numel()))
        return torch.cat(
            [model(prepare(chunk), *told) for chunk in x.chunks(size, indices)]
        ).float()
