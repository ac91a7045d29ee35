"""What is deployed: the last weights, or an average of the weights over training.

What is trained and what is deployed are two axes; every average combines with every method. Where
BatchNorm layers are not frozen, the loop measures their statistics anew for what is deployed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from afield.training.evaluation import Checkpoint

__all__ = ["Average", "Checkpoint"]


@dataclass
class Average:
    """Follows a model through training; `model` is what would be deployed now.

    The fields of a subclass are its settings. A subclass that keeps its own copy of the weights
    overrides `setup`, `after_step` and the two that save and load its state.

    Where `final` is set, the average itself chooses among the steps: only what it has at the end is
    deployed, and until then checkpoints show the model that is trained. It may end the training
    early by setting `done`.
    """

    deploys_at_end: ClassVar[bool] = False

    @property
    def done(self) -> bool:
        """Whether further training would change nothing."""
        return False

    def setup(self, model: nn.Module, *, steps: int) -> None:
        """Begin with a model that has not been trained yet, and will be for so many steps."""
        del steps
        self.model = model

    def after_step(self, model: nn.Module) -> None:
        """Take in the weights after a training step."""

    def after_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Take in how a checkpoint's model does on the sources; of the target nothing is in it."""

    def logs(self) -> dict[str, float]:
        """What is worth knowing of what is deployed now; it goes into the record."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """All that is not a setting."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to a saved state."""
