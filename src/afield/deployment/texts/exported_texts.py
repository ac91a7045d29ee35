"""Networks of texts as they are exported: from token ids and a mask to probabilities."""

import torch
from torch import Tensor, nn

from afield.data.sources.texts import BYTE_TOKENS, PADDING, read_tokenizer
from afield.deployment.inputs import Inputs

__all__ = ["DeployedTextNetwork", "example_texts"]

# Shorter batches are special cases for exporters.
MIN_TOKENS = 2


class DeployedTextNetwork(nn.Module):
    """A network of texts together with its temperature and softmax."""

    def __init__(self, module: nn.Module, temperature: float) -> None:
        super().__init__()
        self.module = module
        self.temperature = temperature

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the logits and probabilities of token ids."""
        logits = self.module(input_ids.masked_fill(attention_mask == 0, PADDING))
        return logits, (logits / self.temperature).softmax(dim=1)


def example_texts(inputs: Inputs, count: int) -> tuple[Tensor, Tensor]:
    """Random token ids; the texts, and the batches, have different numbers of tokens."""
    tokens = max(MIN_TOKENS, inputs.stored[0] - count)
    generator = torch.Generator().manual_seed(count)
    known = read_tokenizer(inputs.tokenizer).get_vocab_size() if inputs.tokenizer else BYTE_TOKENS
    ids = torch.randint(known, (count, tokens), generator=generator)
    lengths = torch.randint(1, tokens + 1, (count, 1), generator=generator)
    lengths[0] = tokens
    return ids, (torch.arange(tokens) < lengths).long()
