"""What is deployed: the last weights, or an average of the weights over training.

What is trained and what is deployed are two axes; every average combines with every method.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from afield.evaluation import Checkpoint

__all__ = ["Average"]


@dataclass
class Average:
    """Follows a model through training; `model` is what would be deployed now.

    The fields of a subclass are its settings. A subclass that keeps its own copy of the weights
    overrides `follow`, `after_step` and the two that save and load its state.
    """

    def follow(self, model: nn.Module) -> None:
        """Begin with a model that has not been trained yet."""
        self.model = model

    def after_step(self, model: nn.Module) -> None:
        """Take in the weights after a training step."""

    def after_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Take in how the deployed model does on the sources; of the target nothing is in it."""

    def state_dict(self) -> dict[str, Any]:
        """All that is not a setting."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to a saved state."""
