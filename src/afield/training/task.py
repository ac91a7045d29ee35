"""What a method may know about a run."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

__all__ = ["Task"]


@dataclass(frozen=True)
class Task:
    """Everything that a method may know about a run; nothing about the target is in it.

    Attributes
    ----------
    sources, classes
        Names of the source domains and of the classes.
    steps
        Number of training steps.
    network
        Builds another network of the run's kind with the given number of outputs.
    optimizer
        Builds an optimizer for parameters or parameter groups. It has the run's settings, unless
        keywords override them.
    shape
        Shape of a sample as the network sees it.
    schedule
        Factor of the learning rate at a step; None means constant.
    clip_norm
        Greatest norm of a gradient; 0 means unlimited.
    scales_loss
        Whether losses are scaled up for backward passes in float16, whose small numbers are coarse.
    pretrained
        Whether the network starts from weights that were trained before.
    """

    sources: tuple[str, ...]
    classes: tuple[str, ...]
    steps: int
    network: Callable[[int], nn.Module]
    optimizer: Callable[..., torch.optim.Optimizer]
    shape: tuple[int, ...] = ()
    schedule: Callable[[int], float] | None = None
    clip_norm: float = 0.0
    scales_loss: bool = False
    pretrained: bool = True
