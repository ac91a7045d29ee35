"""Runs of classical methods: the training samples as a matrix, and the network fitted to it.

A run reads its data, scales them and evaluates its model as any other run. In between, there are no
steps: the method is fitted once to all training samples of the sources, as stored and without
augmentation.
"""

from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from afield.data.bag_of_words import BagScaling
from afield.data.samples import Samples
from afield.errors import SpecError
from afield.runs.run_setup import TrainingState
from afield.training.classical_method import ClassicalMethod, TrainingMatrix, check_matrix_size

# Samples that are prepared at once.
CHUNK = 1024


def fit_classical(work: TrainingState) -> nn.Module:
    """Fit the classical method of a run; return its network, in evaluation mode."""
    method, model = work.method, work.learner.model
    if not isinstance(method, ClassicalMethod):
        raise SpecError(f"{work.run.key}: {work.run.method} is no classical method")
    matrix = training_matrix(work)
    method.fit_head(model, matrix)
    return model.to(work.machine.device).eval()


def training_matrix(work: TrainingState) -> TrainingMatrix:
    """The samples that a run trains on, as a linear network would see them."""
    samples = work.stream.samples
    x, kind = _inputs(samples, work.run.method)
    return TrainingMatrix(
        x=x,
        y=samples.y.cpu().numpy(),
        classes=len(work.inputs["classes"]),
        kind=kind,
        seed=work.run.seed,
        threads=work.machine.threads,
    )


def _inputs(samples: Samples, method: str) -> tuple[Any, Literal["table", "texts", "numbers"]]:
    """The matrix of all samples, and what its columns are."""
    if isinstance(samples.prepare, BagScaling):
        return samples.prepare.sparse(samples.x), "texts"
    return _dense(samples, method), getattr(samples.prepare, "kind", "numbers")


def _dense(samples: Samples, method: str) -> NDArray[np.float32]:
    """One row of prepared numbers for each sample."""
    whole: NDArray[np.float32] | None = None
    start = 0
    for chunk in samples.x.chunks(CHUNK):
        with torch.inference_mode():
            rows = samples.prepare(chunk).float().flatten(1).cpu().numpy()
        if whole is None:
            check_matrix_size(method, len(samples), rows.shape[1])
            whole = np.empty((len(samples), rows.shape[1]), np.float32)
        whole[start : start + len(rows)] = rows
        start += len(rows)
    if whole is None:
        raise SpecError(f"{method}: the sources have no samples to train on")
    return whole
