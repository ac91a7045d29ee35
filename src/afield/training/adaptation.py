"""Test-time adaptation: what a deployed model may do with unlabelled samples of a new domain.

A method trains, an average chooses the weights, and an adaptation changes how the finished model
predicts. It sees the samples of one domain in batches, without their labels, and starts afresh for
every domain and split. Nothing is trained on labels after training, and nothing is written back
into the model.
"""

from dataclasses import dataclass

from torch import nn

from afield.errors import SpecError
from afield.networks.inference import BatchPredictor


@dataclass(frozen=True)
class Adaptation:
    """A way to adapt a model. The fields of a subclass are its hyperparameters.

    A subclass overrides `predictor`, and `check` if it cannot adapt every network.
    """

    def check(self, model: nn.Module) -> None:
        """Raise `SpecError` if this network cannot be adapted; called before training."""

    def predictor(self, model: nn.Module) -> BatchPredictor:
        """Return a network that adapts; the model belongs to it from now on."""
        raise NotImplementedError(f"{type(self).__name__} does not override predictor")


def require_plain(model: nn.Module, name: str) -> None:
    """Raise `SpecError` if a network already predicts from batches of unlabelled samples."""
    if isinstance(model, BatchPredictor):
        raise SpecError(
            f"{name}: the network already adapts to unlabelled samples; use another method, or "
            "leave --adapt out"
        )
