"""TENT: test-time entropy minimization of BatchNorm's scales and shifts (Wang et al., 2021).

    BatchNorm layers use the statistics of the batch; for each batch, `steps` times:
        logits = f(x);   scales, shifts ← Adam on the mean entropy of softmax(logits)
    predictions are the last logits, computed before their own step

Scales and shifts carry over from batch to batch and start as trained for every domain. A batch of
one sample has no statistics: it is predicted with those of training, without a step.

Differs from the paper: nothing. Differs from the authors' code: the network is in evaluation mode
apart from BatchNorm, so dropout is off. Their batches have 128 or 200 samples, ours 64. Batches
with few classes ruin the adaptation, since the entropy is smallest if all samples share one class.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from afield.errors import SpecError
from afield.hyperparameters import Choice, LogUniform
from afield.networks.freezing import batch_statistics, batchnorm_layers, require_batchnorm
from afield.networks.inference import BatchPredictor
from afield.training.adaptation import Adaptation, require_plain

__all__ = ["Tent"]


class _MinimalEntropy(BatchPredictor):
    """A network whose BatchNorm scales and shifts follow the entropy of its predictions."""

    def __init__(self, model: nn.Module, lr: float, steps: int) -> None:
        super().__init__()
        self.model = model.requires_grad_(requires_grad=False)
        layers = batchnorm_layers(model)
        self.adapted = [p for layer in layers for p in (layer.weight, layer.bias) if p is not None]
        for parameter in self.adapted:
            parameter.requires_grad_()
        self.trained = [parameter.detach().clone() for parameter in self.adapted]
        self.lr, self.steps = lr, steps
        self.reset()

    @torch.no_grad()
    def reset(self) -> None:
        """Return to the trained scales and shifts, with a new optimizer."""
        for parameter, value in zip(self.adapted, self.trained, strict=True):
            parameter.copy_(value)
        self.optimizer = torch.optim.Adam(self.adapted, lr=self.lr)

    def forward(self, x: Tensor) -> Tensor:
        """Adapt to the batch; return the logits of the last pass."""
        if len(x) == 1:
            return self.model(x)
        with torch.enable_grad(), batch_statistics(self.model):
            for _ in range(self.steps):
                logits = self.model(x)
                log_p = logits.log_softmax(dim=1)
                self.optimizer.zero_grad()
                (-(log_p.exp() * log_p).sum(dim=1).mean()).backward()
                self.optimizer.step()
        return logits.detach()


@dataclass(frozen=True)
class Tent(Adaptation):
    """Entropy minimization at test time; `steps` is the number of steps per batch."""

    lr: Annotated[float, LogUniform(1e-4, 1e-2)] = 1e-3
    steps: Annotated[int, Choice((1, 3))] = 1

    def __post_init__(self) -> None:
        if self.lr < 0 or self.steps < 1:
            raise SpecError(f"tent: lr={self.lr:g}, steps={self.steps}: needs lr >= 0, steps >= 1")

    def check(self, model: nn.Module) -> None:
        """Raise unless the network has BatchNorm layers with scales and shifts."""
        require_plain(model, "tent")
        require_batchnorm(model, "tent", affine=True)

    def predictor(self, model: nn.Module) -> BatchPredictor:
        """The network with scales and shifts that adapt."""
        self.check(model)
        return _MinimalEntropy(model, self.lr, self.steps)
