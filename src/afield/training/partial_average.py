"""Averages of a network of which only a part is trained: they act on that part alone.

An average copies and mixes all parameters of the model that it observes. If most of them are
frozen, as with LoRA, that takes memory, time, and space in snapshots for tensors that never change.
So the average observes the trained parameters and the buffers only. With factors of LoRA, the
factors are averaged, and not their products.
"""

import copy
from collections.abc import Mapping
from typing import Any, cast

from torch import nn

from afield.tensors import assign
from afield.training.average import Average
from afield.training.scores import Checkpoint


class TrainedPart(nn.Module):
    """The trained parameters and the buffers of a network; they are the network's own."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        trained = [each for each in net.parameters() if each.requires_grad]
        self.trained = nn.ParameterList(trained)
        for number, buffer in enumerate(net.buffers()):
            self.register_buffer(f"buffer{number}", buffer)


class PartialAverage(Average):
    """An average that observes the trained part of a network; `model` is the whole network."""

    def __init__(self, average: Average) -> None:
        self.average = average
        # What has changed since the whole network got the averaged parameters.
        self._outdated = ""
        self.deploys_at_end: bool = average.deploys_at_end  # type: ignore[misc]

    @property
    def done(self) -> bool:
        """Whether training can end."""
        return self.average.done

    @property
    def model(self) -> nn.Module:  # type: ignore[override]
        """The network with the averaged parameters."""
        if self._outdated:
            assign(list(self._copied.trained), list(self._averaged.trained))
            if self._outdated == "step":
                assign(list(self._copied.buffers()), list(self._averaged.buffers()))
            self._outdated = ""
        return self._whole

    def setup(self, model: nn.Module, *, steps: int) -> None:
        """Start with the trained part of a model."""
        self._observed = TrainedPart(model)
        self.average.setup(self._observed, steps=steps)
        if self.average.model is self._observed:
            self._whole, self._copied = model, self._observed
        else:
            # Frozen parameters are shared, not copied.
            frozen = {id(p): p for p in model.parameters() if not p.requires_grad}
            self._whole = copy.deepcopy(model, frozen)
            self._copied = TrainedPart(self._whole)

    @property
    def _averaged(self) -> TrainedPart:
        return cast(TrainedPart, self.average.model)

    def after_step(self, model: nn.Module) -> None:
        """Use the trained parameters after a step."""
        del model
        self.average.after_step(self._observed)
        self._note("step")

    def after_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Use the scores of a checkpoint; measured statistics of BatchNorm stay."""
        self.average.after_checkpoint(checkpoint)
        self._note("checkpoint")

    def logs(self) -> dict[str, float]:
        """Facts about the present average."""
        return self.average.logs()

    def state_dict(self) -> dict[str, Any]:
        """The state of the average, about the trained part alone."""
        return self.average.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        self.average.load_state_dict(state)
        self._note("step")

    def _note(self, what: str) -> None:
        """Remember that the whole network has other values; the latest step counts most."""
        if self._copied is not self._observed and self._outdated != "step":
            self._outdated = what


def partial_average(average: Average, model: nn.Module) -> Average:
    """The average itself, or one of the trained part if a parameter of the model is frozen."""
    trains_all = all(parameter.requires_grad for parameter in model.parameters())
    return average if trains_all else PartialAverage(average)
