"""Run a network in evaluation mode over many samples.

Most networks map each sample to its outputs. A `BatchPredictor` also uses the other samples of the
same domain; it is given one domain at a time, in batches of a fixed size.
"""

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from afield.data.samples import Prepare, Rows, identity, trim_padding

# Greatest number of samples in one forward pass on a CPU and on a GPU, and of values in the largest
# output of a layer: large enough to keep the device busy, small enough for caches and memory.
MAX_CHUNK_SAMPLES, MAX_CHUNK_SAMPLES_GPU, MAX_CHUNK_NUMBERS = 128, 512, 2**24
# The same for texts: a transformer computes thousands of values per token.
MAX_CHUNK_TOKENS = 2**14
# On a GPU, the largest output of a layer takes at most this share of its memory. What is free does
# not matter: the last digits of outputs can depend on the size of a chunk.
GPU_MEMORY_SHARE = 1 / 32
# Samples in the first chunk, which measures the outputs of the layers.
MEASURED_SAMPLES = 16


class BatchPredictor(nn.Module):
    """A network whose outputs for a sample depend on other unlabelled samples of its domain.

    Test-time adaptations return one, and a method whose network predicts from batches (ARM, MTL)
    makes its model a subclass. The contract:

    - In evaluation mode, `forward` gets batches of `batch_size` unlabelled samples of one split of
      one domain; the last batch may be smaller. It may update a state that the next batch uses.
    - `reset` is called before the first batch of every split and forgets everything about earlier
      samples. The state is not in `state_dict`.
    - In evaluation mode, `forward` runs without gradients; `torch.enable_grad` turns them on.

    `Evaluator` does so for every split, in an order drawn from the trial; `compute_outputs` takes
    the samples that it is given for one split. In training mode nothing of this applies.
    """

    batch_size: int = 64

    def reset(self) -> None:
        """Forget all samples seen so far; a network without a state need not override it."""


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
    max_batch_size: int | None = None,
    domain: int | None = None,
) -> Tensor:
    """Compute the outputs of a network in evaluation mode, in chunks.

    Parameters
    ----------
    model
        The network. A `BatchPredictor` is reset first and gets batches of its own size.
    x, prepare
        Samples, and the function that turns them into inputs of the network.
    indices
        Samples to use; by default all.
    max_batch_size
        Greatest number of samples in a chunk; a network with large layers gets smaller chunks.
    domain
        Domain label of the samples, for networks that accept one.
    """
    label = () if domain is None else (domain,)
    by_batch = isinstance(model, BatchPredictor)
    if isinstance(model, BatchPredictor):
        model.reset()
        chunks = x.chunks(model.batch_size, indices)
    else:
        chunks = _chunks(model, x, prepare, indices, max_batch_size)
    with eval_mode(model), torch.no_grad() if by_batch else torch.inference_mode():
        if x.is_tokens:
            chunks = map(trim_padding, chunks)
        return torch.cat([model(prepare(chunk), *label) for chunk in chunks]).float()


def _chunks(
    model: nn.Module,
    x: Rows,
    prepare: Prepare,
    indices: Tensor | None,
    max_batch_size: int | None,
) -> Iterator[Tensor]:
    """Samples in chunks that suit the layers of a network, which a small first chunk measures.

    The chunks do not depend on earlier calls, and none is very small unless all samples are few:
    the last digits of outputs can depend on the size of a chunk, and a run that continues in a new
    process must compute the same.
    """
    rows = torch.arange(len(x)) if indices is None else indices
    # Bags of words become vectors, which cost no more than other vectors.
    if x.is_tokens and not prepare(x.take(rows[:1].to(x.index_device))).is_floating_point():
        size = min(max_batch_size or MAX_CHUNK_SAMPLES, MAX_CHUNK_TOKENS // x.shape.numel())
        yield from x.chunks(max(1, size), indices)
        return
    first = MEASURED_SAMPLES if len(rows) >= 2 * MEASURED_SAMPLES else len(rows)
    count = max(1, min(first, max_batch_size or first))
    sizes = [count * x.shape.numel()]
    with _output_sizes(model, sizes):
        yield from x.chunks(count, rows[:count])
    left = len(rows) - count
    if left > 0:
        size = _chunk_size(x.device, max(sizes) // count, max_batch_size)
        yield from x.chunks(math.ceil(left / math.ceil(left / size)), rows[count:])


def _chunk_size(device: torch.device, values: int, max_batch_size: int | None) -> int:
    """Number of samples in a chunk, if the largest layer has this number of values per sample."""
    numbers, samples = MAX_CHUNK_NUMBERS, MAX_CHUNK_SAMPLES
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        numbers, samples = int(GPU_MEMORY_SHARE * total / 4), MAX_CHUNK_SAMPLES_GPU
    return max(1, min(max_batch_size or samples, numbers // values))


@contextmanager
def _output_sizes(model: nn.Module, sizes: list[int]) -> Iterator[None]:
    """Append the number of values of every layer's output to `sizes`."""
    with ExitStack() as stack:
        for module in model.modules():
            stack.callback(module.register_forward_hook(partial(_append_size, sizes)).remove)
        yield


def _append_size(sizes: list[int], _: nn.Module, _inputs: Any, output: Any) -> None:
    if isinstance(output, Tensor):
        sizes.append(output.numel())
