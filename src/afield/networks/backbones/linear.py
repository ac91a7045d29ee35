"""No hidden layer: the features are the inputs, so that the whole network is one linear layer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from afield.errors import SpecError
from afield.networks.backbone import Backbone, Shape

__all__ = ["Linear"]


@dataclass(frozen=True)
class Linear(Backbone):
    """The flattened inputs."""

    patterns: ClassVar[tuple[str, ...]] = ("linear",)

    def check(self) -> None:
        """There is one such network only; any other name of the family is unknown."""
        if self.name not in self.patterns:
            raise self.unknown(self.patterns)

    def build(
        self, shape: Shape, *, weights: str, class_names: Sequence[str]
    ) -> tuple[nn.Module, Tensor | None]:
        """The inputs as one row per sample, without parameters."""
        del shape, class_names
        if weights:
            raise SpecError(f"{self.name} has no pretrained weights; omit --weights {weights}")
        return nn.Flatten(), None
