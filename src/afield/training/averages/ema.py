"""Exponential moving average of the weights (Polyak and Juditsky, 1992).

    average ← d · average + (1 - d) · weights,   d = min(decay, (1 + t) / (10 + t)) at step t

Differs from the plain moving average: the decay grows over the first steps, so that a short
training also forgets the random initial weights. Buffers are those of the trained model.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field
from torch import nn

from afield.hyperparameters import Choice
from afield.tensors import assign, mix
from afield.training.average import Average

__all__ = ["EMA"]


@dataclass
class EMA(Average):
    """Exponential moving average of the weights; `decay` is the greatest d."""

    decay: Annotated[float, Choice((0.9, 0.99, 0.999)), Field(le=1)] = 0.999

    def setup(self, model: nn.Module, *, steps: int) -> None:
        """Start with a copy of the model."""
        del steps
        self.steps = 0
        self.model = copy.deepcopy(model)

    def after_step(self, model: nn.Module) -> None:
        """Move the average towards the weights."""
        decay = min(self.decay, (1 + self.steps) / (10 + self.steps))
        self.steps += 1
        mix(list(self.model.parameters()), list(model.parameters()), share=1 - decay)
        assign(list(self.model.buffers()), list(model.buffers()))

    def state_dict(self) -> dict[str, Any]:
        """Return the average and the number of steps in it."""
        return {"model": self.model.state_dict(), "steps": self.steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        self.model.load_state_dict(state["model"])
        self.steps = state["steps"]
