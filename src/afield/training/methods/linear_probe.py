"""Linear probing: frozen features, and the linear head that fits the sources best.

    head = argmin of mean cross-entropy over all samples of the sources + ½ · l2 · |W|²

The features are those of the network's initial weights, standardized for the fit. The head is
fitted once, before the first step, in evaluation mode and without augmentation; the steps of the
run change nothing more. If the network comes with a frozen head (CLIP's, which class names define),
not even the head is fitted: the result is zero-shot. On arrays, the features are the inputs (the
backbone `linear`) unless another network is given: a random network would only lose information.

Linear probing shows what pretraining alone achieves. It is also the base from which experts are
fine-tuned for merging. Differs from the usual meaning: the head is the optimum, found by L-BFGS
(scikit-learn), and not the point where some steps of a gradient method happen to end.
"""

import logging
import warnings
from dataclasses import dataclass
from typing import Annotated, ClassVar, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits
from torch import Tensor, nn

from afield.data.samples import Samples
from afield.errors import SpecError
from afield.hyperparameters import LogUniform
from afield.networks.backbone import Classifier
from afield.networks.inference import compute_outputs
from afield.training.learner import Learner, Task
from afield.training.method import Batches, Logs, Method

__all__ = ["LinearProbe"]

log = logging.getLogger(__name__)

# How far the bias of a class without samples lies below the least bias of the other classes.
ABSENT_CLASS_MARGIN = 10.0
# The solver stops when no entry of the gradient is larger, or after this many iterations.
GRADIENT_TOLERANCE, MAX_ITERATIONS = 1e-7, 2000


@dataclass(frozen=True)
class LinearProbe(Method):
    """A fitted head; `l2` penalizes its weights, on standardized features of any network."""

    l2: Annotated[float, LogUniform(1e-6, 1.0)] = 1e-3

    array_backbone: ClassVar[str] = "linear"

    def __post_init__(self) -> None:
        if self.l2 <= 0:
            raise SpecError(f"linear_probe.l2={self.l2:g}: must be above 0")

    def setup(self, model: nn.Module, task: Task) -> Learner:
        """Check that the network has features and a head."""
        if not isinstance(model, Classifier):
            kind = type(model).__name__
            raise SpecError(f"linear_probe needs a Classifier (features and a head), not {kind}")
        return Learner(model, task)

    def regroup(self, learner: Learner, samples: Samples) -> None:
        """Fit the head before the first step; the groups stay unchanged."""
        model = cast(Classifier, learner.model)
        if learner.step or not model.head.weight.requires_grad:
            return
        features = compute_outputs(model.features, samples.x, samples.prepare).double().cpu()
        mean, std = features.mean(dim=0), features.std(dim=0, correction=0)
        std = torch.where(std > 0, std, 1.0)
        y = samples.y.cpu()
        standardized = ((features - mean) / std).numpy()
        weight, bias = _fit_head(standardized, y.numpy(), len(learner.task.classes), self.l2)
        weight = weight / std
        head = {"weight": weight, "bias": bias - weight @ mean}
        model.head.load_state_dict({name: value.float() for name, value in head.items()})
        loss = F.cross_entropy(F.linear(features, head["weight"], head["bias"]), y)
        learner.memory["loss"] = loss.float().to(samples.y.device)

    def update(self, learner: Learner, batches: Batches) -> Logs:
        """Change nothing; log the loss of the fit."""
        del batches
        return {"loss": learner.memory.get("loss", torch.zeros(()))}


def _fit_head(
    x: NDArray[np.float64], y: NDArray[np.int64], classes: int, l2: float
) -> tuple[Tensor, Tensor]:
    """Weights and biases, one row per class; only classes with samples are fitted."""
    weight, bias = torch.zeros(classes, x.shape[1]).double(), torch.zeros(classes).double()
    present = np.unique(y)
    if len(present) > 1:
        # scikit-learn fits one row for two classes. Half of it for each class has half its square.
        two = len(present) == 2
        fit = _solve(x, y, strength=(2 if two else 1) / (l2 * len(y)))
        rows, offsets = torch.from_numpy(fit.coef_), torch.from_numpy(fit.intercept_)
        if two:
            rows, offsets = (torch.cat([-value, value]) / 2 for value in (rows, offsets))
        weight[present], bias[present] = rows.double(), offsets.double()
    absent = np.setdiff1d(np.arange(classes), present)
    bias[absent] = bias[present].min() - ABSENT_CLASS_MARGIN
    return weight, bias


def _solve(x: NDArray[np.float64], y: NDArray[np.int64], *, strength: float) -> LogisticRegression:
    """Find the optimum, with the run's number of threads: the last digits depend on it."""
    fit = LogisticRegression(C=strength, tol=GRADIENT_TOLERANCE, max_iter=MAX_ITERATIONS)
    with threadpool_limits(torch.get_num_threads(), user_api="blas"), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        fit.fit(x, y)
    if max(fit.n_iter_) >= MAX_ITERATIONS:
        log.warning(
            "linear_probe: not converged after %d iterations; try a larger l2", MAX_ITERATIONS
        )
    return fit
