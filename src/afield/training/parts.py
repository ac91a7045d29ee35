"""Additional networks that several methods have, and what methods need of the model."""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from afield.errors import SpecError
from afield.networks.backbone import Classifier
from afield.training.task import Task

__all__ = ["perceptron", "require_classifier", "sample_of_zeros"]


def require_classifier(model: nn.Module, method: str, *, own_head: bool = False) -> Classifier:
    """Return the model, or raise `SpecError` unless it has features and a head.

    With `own_head`, the method replaces the head, so a frozen one is refused too.
    """
    if not isinstance(model, Classifier):
        kind = type(model).__name__
        raise SpecError(f"{method} needs a Classifier (features and a head), not {kind}")
    if own_head and not model.head.weight.requires_grad:
        raise SpecError(f"{method} trains a head of its own, but the network's head is frozen")
    return model


def perceptron(
    *widths: int, activation: type[nn.Module] = nn.ReLU, **options: Any
) -> nn.Sequential:
    """Linear layers with activations in between; the indices of layers are even."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), activation(**options)]
    return nn.Sequential(*layers[:-1])


def sample_of_zeros(model: nn.Module, task: Task) -> Tensor:
    """One sample, with which to find the stages of the model."""
    like = next(model.parameters())
    return torch.zeros(1, *task.shape, device=like.device, dtype=like.dtype)
