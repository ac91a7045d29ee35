"""WiSE-FT: weights between the start and the end of fine-tuning (Wortsman et al., 2022).

    average = (1 - alpha) · first weights + alpha · present weights

With alpha = 1 these are the last weights, with alpha = 0 the first. The first weights need a head
that fits them: that of a zero-shot CLIP, or one fitted with ``--start linear_probe``.

Differs from the paper: every checkpoint is evaluated at the same `alpha`, so selection rules choose
among interpolated models. Buffers are those of the trained model; unfrozen BatchNorm statistics are
measured again, as for every average.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from torch import nn

from afield.errors import SpecError
from afield.hyperparameters import Choice
from afield.tensors import assign, clone_tensors, mix
from afield.training.average import Average

__all__ = ["Wise"]


@dataclass
class Wise(Average):
    """Interpolation between the first and the present weights; `alpha` is the present's share."""

    needs_fitted_start: ClassVar[bool] = True

    alpha: Annotated[float, Choice((0.2, 0.4, 0.5, 0.6, 0.8))] = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise SpecError(f"wise.alpha={self.alpha:g}: must be a share from 0 to 1")

    def setup(self, model: nn.Module, *, steps: int) -> None:
        """Keep the first weights."""
        del steps
        self.model = copy.deepcopy(model)
        self.first = clone_tensors(list(model.parameters()))

    def after_step(self, model: nn.Module) -> None:
        """Interpolate between the first and the present weights."""
        average = list(self.model.parameters())
        assign(average, self.first)
        mix(average, list(model.parameters()), share=self.alpha)
        assign(list(self.model.buffers()), list(model.buffers()))

    def state_dict(self) -> dict[str, Any]:
        """Return the average and the first weights."""
        return {"model": self.model.state_dict(), "first": self.first}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        self.model.load_state_dict(state["model"])
        assign(self.first, state["first"])
