"""Weight averaging: deploy the last weights, or an average of the weights over training.

Methods decide what is trained, averages decide what is deployed; any average can be combined with
any method. If BatchNorm layers are not frozen, the loop measures their statistics again for the
averaged weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from afield.training.scores import Checkpoint


@dataclass
class Average:
    """Observes a model during training; `model` is what would be deployed now.

    The fields of a subclass are its hyperparameters. A subclass that keeps a copy of the weights
    overrides `setup`, `after_step`, `state_dict` and `load_state_dict`.

    If `deploys_at_end` is true, the average itself chooses among the steps: only its model at the
    end is deployed, and earlier checkpoints show the trained model. Such an average can end
    training early through `done`.

    `needs_fitted_start` marks an average that uses the weights before the first step, so that a
    benchmark refuses to combine it with a new, random head.
    """

    deploys_at_end: ClassVar[bool] = False
    needs_fitted_start: ClassVar[bool] = False

    @property
    def done(self) -> bool:
        """Whether training can end because further steps would not change the average."""
        return False

    def setup(self, model: nn.Module, *, steps: int) -> None:
        """Start with a model that is about to be trained for this number of steps."""
        del steps
        self.model = model

    def after_step(self, model: nn.Module) -> None:
        """Use the weights after a training step."""

    def after_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Use the scores of a checkpoint; it has those of the source domains only."""

    def logs(self) -> dict[str, float]:
        """Facts about the present average that are logged in the record."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return everything that is not a hyperparameter."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
