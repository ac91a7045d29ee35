"""A bag of words: TF-IDF vectors of texts, so that the whole network is one linear layer.

The n-grams and their weights come from the texts that a run trains on, as the scaling of numbers
does; see `afield.data.bag_of_words`. Nothing of an unseen domain reaches them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from afield.data.bag_of_words import NGRAMS
from afield.networks.backbones.linear import Linear

__all__ = ["Bag"]


@dataclass(frozen=True)
class Bag(Linear):
    """The vectors themselves, as the features of a linear head."""

    patterns: ClassVar[tuple[str, ...]] = ("bag:",)
    # The values of a vector of length 1 are small, so the weights of its n-grams become large.
    usual_settings: ClassVar[Mapping[str, Any]] = {"lr": 0.02, "steps": 150, "every": 15}

    @property
    def takes_text(self) -> bool:
        """True: the vectors are made of texts."""
        return True

    @property
    def tokenizer(self) -> str:
        """N-grams instead of the tokens of a file."""
        return NGRAMS

    @property
    def usual_tokens(self) -> int:
        """The greatest number of different n-grams of a text."""
        return 2048
