"""Run a network in evaluation mode over many samples.

Most networks map each sample to its outputs. A `BatchPredictor` also uses the other samples of the
same domain; it is given one domain at a time, in batches of a fixed size.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from afield.data.samples import Prepare, Rows, identity, trim_padding

__all__ = ["MAX_CHUNK_NUMBERS", "MAX_CHUNK_SAMPLES", "BatchPredictor"]
__all__ += ["compute_outputs", "eval_mode"]

# Greatest number of samples, and of values in them, in one forward pass: large enough to keep the
# cores busy, small enough for caches and memory.
MAX_CHUNK_SAMPLES, MAX_CHUNK_NUMBERS = 512, 2**23
# The same for texts: a transformer computes thousands of values per token.
MAX_CHUNK_TOKENS = 2**14


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
    max_batch_size: int = MAX_CHUNK_SAMPLES,
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
        Greatest number of samples in a chunk; large samples make chunks smaller.
    domain
        Domain label of the samples, for networks that accept one.
    """
    label = () if domain is None else (domain,)
    numbers = MAX_CHUNK_TOKENS if x.is_tokens else MAX_CHUNK_NUMBERS
    size = max(1, min(max_batch_size, numbers // x.shape.numel()))
    by_batch = isinstance(model, BatchPredictor)
    if isinstance(model, BatchPredictor):
        model.reset()
        size = model.batch_size
    with eval_mode(model), torch.no_grad() if by_batch else torch.inference_mode():
        chunks = x.chunks(size, indices)
        if x.is_tokens:
            chunks = map(trim_padding, chunks)
        return torch.cat([model(prepare(chunk), *label) for chunk in chunks]).float()
