"""Networks that turn texts into features, from token ids or from embedded tokens.

Token ids are texts × tokens, padded with -1. Embedded tokens are texts × tokens × (width + 1): the
last column is 1 for a token and 0 for padding. A method can move embedded tokens where it cannot
move ids.
"""

from abc import ABC, abstractmethod
from typing import Any, Literal

import torch
from torch import Tensor, nn

Pooling = Literal["mean", "first"]
# Widths of the small network: of an embedded byte, and of each block.
BYTE_WIDTH, BLOCK_WIDTHS = 32, (64, 64, 128)
KERNEL = 5


class TextFeatures(nn.Module, ABC):
    """Features of texts; `embedding_width` is the width of an embedded token."""

    embedding_width: int

    @abstractmethod
    def lookup(self, ids: Tensor) -> Tensor:
        """The vectors of token ids, none of which is padding."""

    @abstractmethod
    def encode(self, vectors: Tensor, present: Tensor) -> Tensor:
        """One row of features per text; `present` marks the vectors that are no padding."""

    def embed(self, ids: Tensor) -> Tensor:
        """Embedded tokens."""
        vectors = self.lookup(ids.clamp(min=0).long())
        present = (ids >= 0).to(vectors.dtype)
        return torch.cat([vectors, present[..., None]], dim=2)

    def forward(self, x: Tensor) -> Tensor:
        """Features of token ids, or of embedded tokens."""
        embedded = x if x.ndim == 3 else self.embed(x)
        return self.encode(embedded[..., :-1], embedded[..., -1] > 0.5)


class ConvBlock(nn.Module):
    """A convolution over tokens that halves their number, normalized."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(before, after, KERNEL, stride=2, padding=KERNEL // 2)
        self.norm = nn.LayerNorm(after)
        self.activation = nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        """Texts × tokens × channels."""
        y: Tensor = self.activation(self.norm(self.conv(x.transpose(1, 2)).transpose(1, 2)))
        return y


class ByteFeatures(TextFeatures):
    """A small convolutional network on tokens: three blocks, then maxima and means over the text.

    Padding is masked before every block, so that the features do not depend on its length. There
    are `width` features; `embedding_width` is the width of an embedded token.
    """

    width = 2 * BLOCK_WIDTHS[-1]

    def __init__(self, tokens: int, width: int = BYTE_WIDTH) -> None:
        super().__init__()
        self.embedding_width = width
        self.embedding = nn.Embedding(tokens, width)
        widths = (width, *BLOCK_WIDTHS)
        self.blocks = nn.ModuleList(
            ConvBlock(before, after) for before, after in zip(widths, BLOCK_WIDTHS, strict=False)
        )

    def lookup(self, ids: Tensor) -> Tensor:
        """The vectors of bytes."""
        vectors: Tensor = self.embedding(ids)
        return vectors

    def encode(self, vectors: Tensor, present: Tensor) -> Tensor:
        """Maxima and means over the positions of the last block."""
        x = vectors
        for block in self.blocks:
            x = block(x * present[..., None])
            present = present[:, ::2]
        highest = x.masked_fill(~present[..., None], -torch.inf).amax(dim=1)
        return torch.cat([highest, _masked_mean(x, present)], dim=1)


class TransformerFeatures(TextFeatures):
    """An encoder of the library transformers, pooled over the tokens of a text.

    `pooling` is ``mean`` for the mean of the last states over all tokens, or ``first`` for the
    state of the first one.
    """

    def __init__(self, encoder: Any, pooling: Pooling) -> None:
        super().__init__()
        self.encoder = encoder
        self.embedding_width = encoder.get_input_embeddings().embedding_dim
        self.pooling = pooling

    def lookup(self, ids: Tensor) -> Tensor:
        """The vectors of tokens, without their positions."""
        vectors: Tensor = self.encoder.get_input_embeddings()(ids)
        return vectors

    def encode(self, vectors: Tensor, present: Tensor) -> Tensor:
        """The pooled states of the last block."""
        states = self.encoder(
            inputs_embeds=vectors, attention_mask=present.long()
        ).last_hidden_state
        return states[:, 0] if self.pooling == "first" else _masked_mean(states, present)


def _masked_mean(x: Tensor, present: Tensor) -> Tensor:
    """Mean over the positions that are present."""
    weight = present[..., None].to(x.dtype)
    return (x * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1)
