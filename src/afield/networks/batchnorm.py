"""Statistics of BatchNorm layers: whether training moves them, and how to measure them again."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

__all__ = ["has_unfrozen_batchnorm", "update_batchnorm"]


def has_unfrozen_batchnorm(model: nn.Module) -> bool:
    """Whether training moves the statistics of any BatchNorm layer."""
    before = model.training
    model.train()
    try:
        return any(_is_unfrozen(module) for module in model.modules())
    finally:
        model.train(before)


@torch.no_grad()
def update_batchnorm(model: nn.Module, batches: Iterable[Tensor]) -> None:
    """Measure the statistics of unfrozen BatchNorm layers again; every batch has the same weight.

    Averaged weights need this: the statistics of the trained model belong to other weights.
    """
    before = model.training
    model.train()
    layers: list[Any] = [module for module in model.modules() if _is_unfrozen(module)]
    momenta = [layer.momentum for layer in layers]
    model.eval()
    try:
        for layer in layers:
            layer.reset_running_stats()
            # None makes torch compute the mean over all batches.
            layer.momentum = None
            layer.train()
        for x in batches:
            model(x)
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
        model.train(before)


def _is_unfrozen(module: nn.Module) -> bool:
    return isinstance(module, _BatchNorm) and module.training and module.track_running_stats
