"""BatchNorm with the statistics of the test batch (Nado et al., 2020; Schneider et al., 2020).

    every BatchNorm layer normalizes by mean and variance of the batch at hand; the weights, scales
    and shifts stay as trained, and nothing is carried over from batch to batch

A batch of one sample has no statistics of its own: it is normalized as in training. A network with
frozen BatchNorm layers can be adapted too, but it was never trained with the statistics of batches.

Differs from Nado et al.: nothing. Differs from Schneider et al.: the statistics of the sources are
not mixed in (their N = 0).
"""

from dataclasses import dataclass

from torch import Tensor, nn

from afield.networks.freezing import batch_statistics, require_batchnorm
from afield.networks.inference import BatchPredictor
from afield.training.adaptation import Adaptation, require_plain

__all__ = ["BatchNorm"]


class _Renormalized(BatchPredictor):
    """A network that normalizes every batch by its own statistics."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the batch."""
        if len(x) == 1:
            return self.model(x)
        with batch_statistics(self.model):
            return self.model(x)


@dataclass(frozen=True)
class BatchNorm(Adaptation):
    """Statistics of the batch in place of those of training; it has no hyperparameters."""

    def check(self, model: nn.Module) -> None:
        """Raise unless the network has BatchNorm layers."""
        require_plain(model, "batch_norm")
        require_batchnorm(model, "batch_norm")

    def predictor(self, model: nn.Module) -> BatchPredictor:
        """The network with statistics of the batch."""
        self.check(model)
        return _Renormalized(model)
