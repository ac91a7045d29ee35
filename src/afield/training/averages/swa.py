"""Stochastic weight averaging: the mean of the weights late in training (Izmailov et al., 2018).

    average = mean of the weights after every `period` steps, from the share `start` of the steps on

Before that, the weights are deployed as trained.

Differs from the paper: the learning rate stays unchanged, neither cyclic nor raised, and weights
are averaged every few steps, not once per epoch. Differs from SWAD: the start is a hyperparameter,
it is not searched.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from torch import nn

from afield.errors import SpecError
from afield.hyperparameters import Choice, Uniform
from afield.tensors import assign, mix
from afield.training.average import Average

__all__ = ["SWA"]


@dataclass
class SWA(Average):
    """Stochastic weight averaging, from the share `start` of the steps on, every `period` steps."""

    start: Annotated[float, Uniform(0.25, 0.9)] = 0.75
    period: Annotated[int, Choice((1, 10, 20))] = 1

    def __post_init__(self) -> None:
        if not 0 <= self.start < 1:
            raise SpecError(
                f"swa.start={self.start:g}: must be a share of the steps from 0 to below 1"
            )
        if self.period < 1:
            raise SpecError(f"swa.period={self.period}: must be above 0")

    def setup(self, model: nn.Module, *, steps: int) -> None:
        """Start with a copy of the model."""
        self.first = min(steps - 1, round(self.start * steps))
        self.steps = self.taken = 0
        self.model = copy.deepcopy(model)

    def after_step(self, model: nn.Module) -> None:
        """Copy the weights, or include them in the mean."""
        late = self.steps - self.first
        self.steps += 1
        if late >= 0 and late % self.period:
            return
        self.taken += late >= 0
        share = 1 / max(1, self.taken)
        mix(list(self.model.parameters()), list(model.parameters()), share=share)
        assign(list(self.model.buffers()), list(model.buffers()))

    def state_dict(self) -> dict[str, Any]:
        """Return the mean, and the number of weights in it."""
        return {"model": self.model.state_dict(), "steps": self.steps, "taken": self.taken}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        self.model.load_state_dict(state["model"])
        self.steps, self.taken = state["steps"], state["taken"]
