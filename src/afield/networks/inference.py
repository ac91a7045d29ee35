"""Run a network in evaluation mode over many samples."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from afield.data.samples import Prepare, Rows, identity

__all__ = ["MAX_CHUNK_NUMBERS", "MAX_CHUNK_SAMPLES", "compute_outputs", "eval_mode"]

# Greatest number of samples, and of values in them, in one forward pass: large enough to keep the
# cores busy, small enough for caches and memory.
MAX_CHUNK_SAMPLES, MAX_CHUNK_NUMBERS = 512, 2**23


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Set evaluation mode, then restore the mode of every module, since some may be frozen."""
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
    """Compute the outputs of a network in evaluation mode, in chunks.

    Parameters
    ----------
    model
        The network.
    x, prepare
        Samples, and the function that turns them into inputs of the network.
    indices
        Samples to use; by default all.
    max_batch_size
        Greatest number of samples in a chunk; large samples make chunks smaller.
    domain
        Domain label of the samples, for networks that accept one.
    """
    label = () if domain is None else (domain,)
    with eval_mode(model), torch.inference_mode():
        size = max(1, min(max_batch_size, MAX_CHUNK_NUMBERS // x.shape.numel()))
        return torch.cat(
            [model(prepare(chunk), *label) for chunk in x.chunks(size, indices)]
        ).float()
