"""A bag of words: TF-IDF vectors of texts, so that the whole network is one linear layer.

The n-grams and their weights come from the texts that a run trains on, as the scaling of numbers
does; see `afield.data.bag_of_words`. Nothing of an unseen domain reaches them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from afield.data.bag_of_words import NGRAMS
from afield.errors import SpecError
from afield.networks.backbone import Backbone, Shape

__all__ = ["Bag"]


@dataclass(frozen=True)
class Bag(Backbone):
    """The vectors themselves."""

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

    def check(self) -> None:
        """There is one such network only."""
        if self.name not in self.patterns:
            raise self.unknown(self.patterns)

    def build(
        self, shape: Shape, *, weights: str, class_names: Sequence[str]
    ) -> tuple[nn.Module, Tensor | None]:
        """The vectors as they are, without parameters."""
        del shape, class_names
        if weights:
            raise SpecError(f"{self.name} has no pretrained weights; omit --weights {weights}")
        return nn.Flatten(), None
