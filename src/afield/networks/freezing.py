"""Parts of a network that stay as they are: its first blocks, and its batch normalization."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from afield.errors import SpecError


def batchnorm_layers(model: nn.Module) -> list[_BatchNorm]:
    """All BatchNorm layers of a network, frozen ones too."""
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]


def require_batchnorm(model: nn.Module, name: str, *, affine: bool = False) -> None:
    """Raise `SpecError` if there is no BatchNorm layer, or none with scale and shift."""
    if not any(layer.affine or not affine for layer in batchnorm_layers(model)):
        raise SpecError(
            f"{name} adapts BatchNorm layers, and the network has none; use t3a, or a backbone "
            "with BatchNorm, such as timm:resnet18"
        )


@contextmanager
def batch_statistics(model: nn.Module) -> Iterator[None]:
    """Within the context, BatchNorm layers in evaluation mode use the statistics of the batch.

    Their own statistics neither matter nor change.
    """
    layers: list[Any] = batchnorm_layers(model)
    saved = [(layer.running_mean, layer.running_var) for layer in layers]
    for layer in layers:
        layer.running_mean = layer.running_var = None
    try:
        yield
    finally:
        for layer, (mean, var) in zip(layers, saved, strict=True):
            layer.running_mean, layer.running_var = mean, var


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


@contextmanager
def keep_batchnorm(model: nn.Module) -> Iterator[None]:
    """Keep the running statistics of BatchNorm layers; in training they normalize as usual.

    A second pass over the same batch needs this: otherwise the batch would count twice.
    """
    layers: list[Any] = [module for module in model.modules() if _is_unfrozen(module)]
    try:
        for layer in layers:
            layer.track_running_stats = False
        yield
    finally:
        for layer in layers:
            layer.track_running_stats = True


def _is_unfrozen(module: nn.Module) -> bool:
    return isinstance(module, _BatchNorm) and module.training and module.track_running_stats


def freeze_blocks(features: nn.Module, count: int, name: str) -> None:
    """Freeze the first `count` blocks of a network, and all that is defined before them; 0: none.

    Blocks are the modules of the longest list or sequence of modules of one class, such as those
    of a transformer; embeddings are defined before them. `name` is that of the network, for errors.
    """
    if not count:
        return
    blocks = _blocks(features)
    if count > len(blocks):
        raise SpecError(f"freeze_blocks={count}: {name} has {len(blocks)} block(s)")
    later = {id(p) for block in blocks[count:] for p in block.parameters()}
    inside = {id(p) for block in blocks[:count] for p in block.parameters()}
    seen_blocks = False
    for parameter in features.parameters():
        seen_blocks = seen_blocks or id(parameter) in later | inside
        if id(parameter) in inside or not seen_blocks:
            parameter.requires_grad = False


def _blocks(features: nn.Module) -> list[nn.Module]:
    """The modules of the longest list of modules of one class; empty if there is none."""
    lists = [list(m) for m in features.modules() if isinstance(m, nn.ModuleList | nn.Sequential)]
    alike = [each for each in lists if len({type(module) for module in each}) == 1]
    return max((each for each in alike if len(each) > 1), key=len, default=[])
