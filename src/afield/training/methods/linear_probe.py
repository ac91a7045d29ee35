"""Linear probing: features as they come, and the linear head that fits the sources best.

    head = argmin of mean cross-entropy over all samples of the sources + ½ · l2 · |W|²

The features are those of the network's first weights, standardised for the fit, which is done once,
before the first step, in evaluation mode and without augmentation; the steps of the run change
nothing more. Where the head comes with the network and is frozen (CLIP's, of the names of the
classes), not even that: it is zero-shot.

It says what pretraining alone gives, and is the base from which experts are fine-tuned, to be
merged. Differs from what is mostly called so in that the head is the optimum, found by L-BFGS
(scikit-learn), and not where some steps of a gradient method happen to end.
"""

import logging
import warnings
from dataclasses import dataclass
from typing import Annotated, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits
from torch import Tensor, nn

from afield.errors import SpecError
from afield.hyperparameters import LogUniform
from afield.networks.backbone import Classifier
from afield.networks.inference import compute_outputs
from afield.training.method import Batches, Learner, Logs, Method, Samples, Task

__all__ = ["LinearProbe"]

log = logging.getLogger(__name__)

# How unlikely a class is that no sample of the sources has, against the least likely other one.
ABSENT_CLASS_MARGIN = 10.0
# No entry of the gradient is larger at the end, or so many iterations were made.
GRADIENT_TOLERANCE, MAX_ITERATIONS = 1e-7, 2000


@dataclass(frozen=True)
class LinearProbe(Method):
    """`l2` keeps the head's weights small; features are standardised, so it suits any network."""

    l2: Annotated[float, LogUniform(1e-6, 1.0)] = 1e-3

    def __post_init__(self) -> None:
        if self.l2 <= 0:
            raise SpecError(f"linear_probe.l2={self.l2:g}: must be above 0")

    def setup(self, model: nn.Module, task: Task) -> Learner:
        """Nothing is trained but the head, and that at once."""
        if not isinstance(model, Classifier):
            kind = type(model).__name__
            raise SpecError(f"linear_probe takes a Classifier, features and a head; {kind} is none")
        return Learner(model, task)

    def regroup(self, learner: Learner, samples: Samples) -> None:
        """Fit the head before the first step; the groups stay as they are."""
        model = cast(Classifier, learner.model)
        if learner.step or not model.head.weight.requires_grad:
            return
        features = compute_outputs(model.features, samples.x, samples.prepare).double().cpu()
        mean, std = features.mean(dim=0), features.std(dim=0, correction=0)
        std = torch.where(std > 0, std, 1.0)
        y = samples.y.cpu()
        standard = ((features - mean) / std).numpy()
        weight, bias = _fitted(standard, y.numpy(), len(learner.task.classes), self.l2)
        weight = weight / std
        head = {"weight": weight, "bias": bias - weight @ mean}
        model.head.load_state_dict({name: each.float() for name, each in head.items()})
        loss = F.cross_entropy(F.linear(features, head["weight"], head["bias"]), y)
        learner.memory["loss"] = loss.float().to(samples.y.device)

    def update(self, learner: Learner, batches: Batches) -> Logs:
        """Nothing more to learn."""
        del batches
        return {"loss": learner.memory.get("loss", torch.zeros(()))}


def _fitted(
    x: NDArray[np.float64], y: NDArray[np.int64], classes: int, l2: float
) -> tuple[Tensor, Tensor]:
    """Weights and biases, a row for each class, of those that are there."""
    weight, bias = torch.zeros(classes, x.shape[1]).double(), torch.zeros(classes).double()
    present = np.unique(y)
    if len(present) > 1:
        # One row there tells two classes apart; its half for each has half its square.
        two = len(present) == 2
        fit = _solved(x, y, strength=(2 if two else 1) / (l2 * len(y)))
        rows, offsets = torch.from_numpy(fit.coef_), torch.from_numpy(fit.intercept_)
        if two:
            rows, offsets = (torch.cat([-each, each]) / 2 for each in (rows, offsets))
        weight[present], bias[present] = rows.double(), offsets.double()
    absent = np.setdiff1d(np.arange(classes), present)
    bias[absent] = bias[present].min() - ABSENT_CLASS_MARGIN
    return weight, bias


def _solved(x: NDArray[np.float64], y: NDArray[np.int64], *, strength: float) -> LogisticRegression:
    """The optimum; its last digits depend on threads, so they are as many as the run has."""
    fit = LogisticRegression(C=strength, tol=GRADIENT_TOLERANCE, max_iter=MAX_ITERATIONS)
    with threadpool_limits(torch.get_num_threads(), user_api="blas"), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        fit.fit(x, y)
    if max(fit.n_iter_) >= MAX_ITERATIONS:
        log.warning("linear_probe: %d iterations do not suffice; a larger l2 may", MAX_ITERATIONS)
    return fit
