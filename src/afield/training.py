"""The one training loop."""

import math
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import nn

from afield.average import Average
from afield.errors import DivergedError
from afield.evaluation import Checkpoint, Scores
from afield.loading import Stream
from afield.method import Learner, Logs, Method

__all__ = ["fit"]

Evaluate = Callable[[nn.Module, int], Mapping[str, Scores]]


def fit(
    method: Method,
    learner: Learner,
    average: Average,
    stream: Stream,
    evaluate: Evaluate,
    *,
    steps: int,
    every: int,
) -> Iterator[Checkpoint]:
    """Train, and yield a checkpoint every so often; to stop early, stop iterating.

    Parameters
    ----------
    method, learner, average, stream
        What trains, its state, what is deployed of it, and its batches. All but the method change;
        a learner that has been trained for some steps goes on from there.
    evaluate
        Called with the deployed model and the number of steps done.
    steps, every
        Train until so many steps are done, with a checkpoint after each `every` and at the end.
    """
    learner.train()
    recent: list[Logs] = []
    while learner.step < steps:
        groups = method.regroup(learner, stream.samples)
        if groups is not None:
            stream.regroup(groups)
        recent.append(method.update(learner, next(stream)))
        average.after_step(learner.model)
        learner.step += 1
        if learner.step % every == 0 or learner.step == steps:
            logs = _mean_logs(recent, f"{type(method).__name__} at step {learner.step}")
            recent = []
            checkpoint = Checkpoint(learner.step, evaluate(average.model, learner.step), logs)
            average.after_checkpoint(checkpoint)
            learner.train()
            yield checkpoint


def _mean_logs(recent: list[Logs], where: str) -> dict[str, float]:
    """Means since the last checkpoint; only here are numbers read off the device."""
    stacked = [torch.stack([logs[name] for logs in recent]).mean() for name in recent[0]]
    means = dict(zip(recent[0], torch.stack(stacked).tolist(), strict=True))
    if not all(map(math.isfinite, means.values())):
        raise DivergedError(f"{where}: {means}; try a smaller lr")
    return means
