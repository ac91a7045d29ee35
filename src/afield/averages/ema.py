"""Exponential moving average of the weights (Polyak and Juditsky, 1992).

    average ← d · average + (1 - d) · weights,   d = min(decay, (1 + t) / (10 + t)) at step t

Differs from the plain average: the decay grows over the first steps, so that the random initial
weights are forgotten in a short training too. Buffers are those of the trained model.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from afield.average import Average
from afield.space import Choice

__all__ = ["EMA"]


@dataclass
class EMA(Average):
    """Exponential moving average."""

    decay: Annotated[float, Choice((0.9, 0.99, 0.999))] = 0.999

    def follow(self, model: nn.Module) -> None:
        """Begin with a copy of the model."""
        self.steps = 0
        self.averaged = AveragedModel(model, multi_avg_fn=self._blend)
        self.model = self.averaged.module

    def after_step(self, model: nn.Module) -> None:
        """Move the copy towards the weights."""
        self.averaged.update_parameters(model)
        self.steps += 1

    def state_dict(self) -> dict[str, Any]:
        """The copy and how many steps it has seen."""
        return {"averaged": self.averaged.state_dict(), "steps": self.steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to a saved state."""
        self.averaged.load_state_dict(state["averaged"])
        self.steps = state["steps"]

    def _blend(self, averages: Any, weights: Any, seen: Tensor | int) -> None:
        del seen  # a tensor: reading it would make the device wait
        decay = min(self.decay, (1 + self.steps) / (10 + self.steps))
        torch._foreach_lerp_(list(averages), list(weights), 1 - decay)
