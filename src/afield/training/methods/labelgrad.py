"""LabelGrad: adversarial training along the classifier's own gradient (Shankar et al., 2018).

    X' = X + ε · c(∇_X J(X, Y)),   J the mean cross-entropy of a batch, c a clip of every entry
    θ follows the gradient of (1 - α) J(X, Y) + α J(X', Y); X' is a constant

This is the baseline of that name in the CrossGrad paper: perturbations that ignore domains. They
follow the gradient itself, not its sign; because J is a mean, a larger batch has shorter gradients.
ε is in the units of the network's inputs: images range from -1 to 1, unless a pretrained network
scales them differently.

Differs from the paper: entries of the gradient are clipped at 0.1, as in the authors' code for
CrossGrad (`clip=0` is the paper's form). The authors published no code for LabelGrad; ε and α are
those of their code for CrossGrad. Of texts, the embedded tokens are moved; the embedding is trained
on the clean inputs only.
"""

from dataclasses import dataclass
from typing import Annotated

import torch.nn.functional as F
from torch import Tensor

from afield.data.samples import Batch
from afield.hyperparameters import Choice, LogUniform, Variant
from afield.training.input_gradients import (
    backward_perturbed_loss,
    check_perturbation,
    input_gradient,
    movable_inputs,
    perturb_inputs,
    require_float_inputs,
)
from afield.training.learner import Learner
from afield.training.method import Batches, Logs, Method, pool

__all__ = ["LabelGrad"]


@dataclass(frozen=True)
class LabelGrad(Method):
    """Training on inputs perturbed along the label gradient.

    `epsilon` is ε, the step length; `alpha` is the share of the perturbed inputs in the loss.
    `clip` limits the entries of the gradient; 0 means unlimited.
    """

    epsilon: Annotated[float, LogUniform(1.0, 1000.0)] = 10.0
    alpha: Annotated[float, Choice((0.1, 0.25, 0.5, 0.75, 0.9))] = 0.5
    clip: Annotated[float, Variant((0.1, 0.0, 0.01))] = 0.1

    def __post_init__(self) -> None:
        lengths = {"epsilon": self.epsilon, "clip": self.clip}
        check_perturbation("labelgrad", epsilons=lengths, alphas={"alpha": self.alpha})

    def update(self, learner: Learner, batches: Batches) -> Logs:
        """Descend on the loss of clean and perturbed inputs."""
        pooled = pool(batches)
        x = movable_inputs(learner.model, pooled.x, "labelgrad")
        learner.optimizer.zero_grad()
        loss = F.cross_entropy(learner.model(x), pooled.y)
        gradient = input_gradient(learner, loss, x, share=1 - self.alpha)
        shifted = perturb_inputs(x, gradient, epsilon=self.epsilon, clip=self.clip)
        loss = loss.detach()
        if self.alpha:
            loss = backward_perturbed_loss(
                learner, loss, F.cross_entropy(learner.model(shifted), pooled.y), self.alpha
            )
        learner.step_optimizer()
        return {"loss": loss, "shift": (shifted - x.detach()).abs().mean()}

    def perturbed_inputs(self, learner: Learner, batch: Batch, size: int | None = None) -> Tensor:
        """Perturbed inputs, as if their batch had `size` samples."""
        x = require_float_inputs(batch.x, "labelgrad").requires_grad_()
        loss = F.cross_entropy(learner.model(x), batch.y, reduction="sum") / (size or len(x))
        gradient = input_gradient(learner, loss, x, share=0)
        return perturb_inputs(x, gradient, epsilon=self.epsilon, clip=self.clip)
